"""What is read: files, archives and their limits."""
