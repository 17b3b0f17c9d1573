"""Provide the agent's ports: gRPC, torch.distributed and our runtime."""
