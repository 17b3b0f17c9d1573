"""Keeps what must outlive a controller, fenced by generation."""
