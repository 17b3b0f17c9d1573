"""One MoE layer: the stages in order."""
