"""How many bytes a transfer round may have, so that moving yields to serving. Pure."""

from math import inf

LEAST_SHARE = 8
"""Rounds shrink to this part of their budget and no further, so that a wave still ends in time."""


def yielding_round_bytes(
    budget: int, *, lost_s_per_byte: float, step_s: float, agree_every: int, max_slowdown: float
) -> int:
    """Return the bytes that one rank may send or receive in a round.

    A round begins at an agreement, so at most one falls on `agree_every` steps: what it costs is
    spread over them.

    budget             bytes, the most
    lost_s_per_byte    seconds that steps took longer for each byte of the busiest rank in waves
                       so far; 0: not measured, or nothing
    step_s             seconds of a step; 0: not measured
    agree_every        steps from one agreement to the next
    max_slowdown       share by which moving may lengthen a step

    >>> terms = {"step_s": 0.01, "agree_every": 4, "max_slowdown": 0.1}
    >>> [yielding_round_bytes(1000, lost_s_per_byte=lost, **terms) for lost in (0, 1e-5, 1e-3)]
    [1000, 400, 125]
    """
    if not step_s > 0:
        return budget
    allowed_s = max_slowdown * step_s * agree_every
    bearable = allowed_s / lost_s_per_byte if lost_s_per_byte > 0 else inf
    return max(1, budget // LEAST_SHARE, int(min(bearable, budget)))
