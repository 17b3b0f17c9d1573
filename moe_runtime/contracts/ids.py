"""Experts by their name in the model, and by the place that holds them.

Axes    T tokens   K experts per token

Two types, because the two kinds of number look alike and must never be mixed:
a logical id becomes a physical one exactly once, in `placement.maps.remap`.
"""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["NOT_SENT", "SEVERAL", "UNCLAIMED", "LogicalIds", "PhysicalIds"]

NOT_SENT = -1
"""In the place of an id: the pair is a zero expert's, so it is sent nowhere and is no load."""


UNCLAIMED = -1
"""In the place of a claim: no row was sent to the slot."""
SEVERAL = -2
"""In the place of a claim: rows for several experts were sent to one slot."""


@dataclass(frozen=True, slots=True, eq=False)
class LogicalIds:
    """Experts of the model."""

    ids_TK: Tensor
    """int64 [T, K], 0..E-1, or NOT_SENT."""


@dataclass(frozen=True, slots=True, eq=False)
class PhysicalIds:
    """Slots of the deployment, numbered rank by rank."""

    ids_TK: Tensor
    """int64 [T, K], 0..P-1, or NOT_SENT."""
