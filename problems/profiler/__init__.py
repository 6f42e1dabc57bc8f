"""PyTorch profiler traces: loading, sorting, DDP steps, step graphs."""
