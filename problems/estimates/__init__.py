"""Steps from architectures and hardware figures, where nothing was measured."""
