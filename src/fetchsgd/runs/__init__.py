"""A run, simulated or real: its settings, set-up, run folder, checkpoints and recorder."""
