"""vLLM as an engine: its MoE layers behind the agent's ports, its worker around the steps."""
