"""One MoE layer on CPU, over a naive loop; counting, over a step; a wave, over a copy."""
