"""The experts that routers chose, kept for whoever asked for the tokens."""
