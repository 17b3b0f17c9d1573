"""Measures placement policies side by side: balance against the weights that they move."""
