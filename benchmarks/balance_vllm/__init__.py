"""vLLM's own balancer, ours and none, on the same requests."""
