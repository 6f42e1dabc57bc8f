"""Logs of communication benchmarks."""
