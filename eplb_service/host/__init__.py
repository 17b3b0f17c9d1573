"""Plugs the service together and runs it, on Ray or without."""
