"""Nsight Systems exports."""
