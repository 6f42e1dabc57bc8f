"""Recordings of several ranks, merged into one."""
