"""What the agent needs from an engine, a group and a controller."""
