"""A run: its settings, its folder, its checkpoints; many runs."""
