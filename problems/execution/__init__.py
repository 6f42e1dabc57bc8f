"""PyTorch execution traces: sizes and order without times."""
