"""A small task to draw shares from."""

import numpy as np

from eplb_service.controller.sharing import ShareTask
from eplb_service.domain.heat import Heat
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.shares import Ownership

JOINED = placement_from_ranks([[[0, 1, 2], [3, 0, 2]]], num_experts=4)


def share_task(*hottest: float) -> ShareTask:
    """Experts 0 and 2 sit on both ranks; even shares leave the ranks uneven."""
    tokens = np.array([hottest or (300.0, 700.0, 400.0, 0.0)])
    heat = Heat(tokens, None, 100, 1.0)
    return ShareTask(heat, JOINED, Ownership.OWN, None, (), 0.01, 0.0, is_even=True)
