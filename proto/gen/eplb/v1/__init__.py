"""Generated from proto/eplb/v1."""
