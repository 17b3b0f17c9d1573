"""What the stages of one MoE layer hand to each other, and the errors they raise."""
