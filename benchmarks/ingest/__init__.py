"""Measures how fast one controller on one core takes in the load of 256 ranks."""
