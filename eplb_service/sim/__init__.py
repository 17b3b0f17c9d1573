"""Runs the very machines of production with time, loss and crashes drawn from a seed."""
