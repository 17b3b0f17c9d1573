"""The barrier at attach: what a new rank group loads, and whether it may run its first step.

A group lives and dies whole. Every rank is told by its Welcome, if one comes in
time, which placement to load; the ranks compare what they were told before they
load, and what they have loaded before they step.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eplb_service.domain.errors import AttachRefused
from eplb_service.domain.ids import Digest
from eplb_service.domain.shares import ShareName


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one rank brings to the barrier."""

    settings: Digest
    """Fingerprint of the settings that must be the same on all ranks, agree_every among them."""
    served: ShareName
    """The placement loaded, and the shares beside it."""


def placement_to_load(offered: Sequence[ShareName | None]) -> ShareName | None:
    """Choose what all ranks load, from what the Welcome of each one named.

    None in `offered` stands for a rank without a Welcome; None as the answer for the
    engine's initial placement, which every rank can always load. Anything but
    unanimity means the initial one: the last settled placement is then reached by
    ordinary waves.
    """
    first = offered[0]
    return first if all(name == first for name in offered) else None


def require_same(loaded: Sequence[Loaded]) -> None:
    """Raise AttachRefused, naming the ranks that differ from most, unless all are equal.

    loaded    by rank
    """
    usual, _ = Counter(loaded).most_common(1)[0]
    odd = [f"rank {rank} has {_told(one)}" for rank, one in enumerate(loaded) if one != usual]
    if odd:
        raise AttachRefused(
            f"the ranks did not load the same: {'; '.join(odd)}; most have {_told(usual)}; "
            "no step runs, restart the group"
        )


def _told(one: Loaded) -> str:
    name = one.served
    return (
        f"epoch {name.epoch}, placement {name.placement:016x}, revision {name.revision}, "
        f"shares {name.digest:016x}, settings {one.settings:016x}"
    )
