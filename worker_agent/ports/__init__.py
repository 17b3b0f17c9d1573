"""What the agent needs from an engine, a group, a mover of weights and a controller.

Ports only: each is met by an adapter, and by a fake in tests. Axes of all shapes:

    L  MoE layers     S  the rank's local slots     E  logical experts
    H  phases (0 prefill, 1 decode)                 J  rows of a dispatch table
"""
