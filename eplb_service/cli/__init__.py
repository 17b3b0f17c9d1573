"""eplbctl: what an operator types."""
