"""The one tree of settings, read once at start."""
