"""Layers whose plans put back what earlier plans moved: they are held back, longer each time.

Loads that alternate would otherwise be followed for ever, each time too late.

Axes    L MoE layers
"""

from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import CountArray, FloatArray
from eplb_service.gates.timely import MOST_DOUBLINGS

UNDONE_SHARE = 0.5
"""Of a layer's moves in one wave, that must put back earlier ones for the layer to thrash."""


@dataclass(frozen=True, slots=True, eq=False)
class HoldBack:
    """Which layers automatic plans leave alone, and until when."""

    num_turns: CountArray
    """[L] waves in a row that put the layer back."""
    until_s: FloatArray
    """[L] monotonic time; in the past where nothing holds the layer back."""

    def layers(self, now_s: float) -> tuple[int, ...]:
        """Return the layers that are held back at this moment."""
        return tuple(np.flatnonzero(self.until_s > now_s).tolist())


def none_held(num_layers: int) -> HoldBack:
    """No layer is held back."""
    return HoldBack(np.zeros(num_layers, dtype=np.int64), np.full(num_layers, -np.inf))


def after_wave(
    held: HoldBack, moved: CountArray, undone: CountArray, *, now_s: float, hold_s: float
) -> HoldBack:
    """Hold back the layers of which a wave of an automatic plan undid most moves.

    moved     [L] slots that the wave filled
    undone    [L] of them, with an expert that an earlier wave took away from that rank
    hold_s    for the first time; it doubles with each further time in a row

    >>> first = after_wave(none_held(2), np.array([4, 4]), np.array([3, 1]), now_s=0.0, hold_s=60.0)
    >>> first.layers(59.0), first.layers(61.0)
    ((0,), ())
    >>> again = after_wave(first, np.array([2, 0]), np.array([2, 0]), now_s=100.0, hold_s=60.0)
    >>> again.layers(219.0), again.layers(221.0)
    ((0,), ())
    """
    is_moved = moved > 0
    is_thrash = is_moved & (undone >= UNDONE_SHARE * moved)
    num_turns = np.where(is_thrash, held.num_turns + 1, np.where(is_moved, 0, held.num_turns))
    doubled = np.minimum(num_turns - 1, MOST_DOUBLINGS)
    until_s = np.where(is_thrash, now_s + hold_s * 2.0**doubled, held.until_s)
    return HoldBack(num_turns, until_s)
