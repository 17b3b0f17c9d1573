"""Measures how long a browser takes to draw what the page shows."""
