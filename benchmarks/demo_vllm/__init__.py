"""Real vLLM under real requests, balanced while it serves."""
