"""How physical slots are numbered over ranks.

Axes    P physical slots    N ranks

Slots are numbered rank by rank. Ranks may have different slot counts; the base
of a rank is the running sum of the counts before it.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import IntArray


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Slots held by each rank of one expert-parallel group."""

    slots_per_rank: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.slots_per_rank or min(self.slots_per_rank) < 0 or not self.num_slots:
            raise InvalidSettings(
                f"slots per rank are {list(self.slots_per_rank)}; expected at least one rank, "
                "no negative count and at least one slot in all"
            )

    @property
    def num_ranks(self) -> int:
        """N."""
        return len(self.slots_per_rank)

    @property
    def num_slots(self) -> int:
        """P."""
        return sum(self.slots_per_rank)

    def base(self, rank: int) -> int:
        """First slot of a rank."""
        return _starts(self.slots_per_rank)[rank]

    def slots_of(self, rank: int) -> slice:
        """Slice of a rank's slots in any array with a slot axis."""
        base = self.base(rank)
        return slice(base, base + self.slots_per_rank[rank])

    def starts(self) -> tuple[int, ...]:
        """[N + 1] first slot of every rank, and one past the last."""
        return _starts(self.slots_per_rank)

    def rank_of_slot(self) -> IntArray:
        """[P] the rank that each slot belongs to."""
        return np.repeat(np.arange(self.num_ranks, dtype=np.int32), self.slots_per_rank)

    def local_slot(self) -> IntArray:
        """[P] each slot as its own rank numbers it."""
        counts = [np.arange(count, dtype=np.int32) for count in self.slots_per_rank]
        return np.concatenate(counts)


@lru_cache(maxsize=256)
def _starts(slots_per_rank: tuple[int, ...]) -> tuple[int, ...]:
    """[N + 1] running sum of slots: asked for with every report of every rank."""
    return tuple(accumulate(slots_per_rank, initial=0))


def uniform_layout(*, num_experts: int, num_ranks: int, num_redundant: int) -> SlotLayout:
    """Spread experts and redundant slots evenly over ranks.

    Raises InvalidSettings, naming redundancy that would divide, when the slots do
    not divide into ranks or when an expert would need two replicas on one rank.

    >>> uniform_layout(num_experts=8, num_ranks=2, num_redundant=2).slots_per_rank
    (5, 5)
    """
    num_slots = num_experts + num_redundant
    if num_experts < 1 or num_ranks < 1 or num_redundant < 0:
        raise InvalidSettings(
            f"{num_experts} experts, {num_ranks} ranks and {num_redundant} redundant slots: "
            "expected at least 1, 1 and 0"
        )
    if num_slots % num_ranks:
        first = -num_experts % num_ranks
        most = num_experts * (num_ranks - 1)
        usable = ", ".join(str(n) for n in range(first, most + 1, num_ranks)[:3])
        raise InvalidSettings(
            f"{num_experts} experts + {num_redundant} redundant = {num_slots} slots do not divide "
            f"over {num_ranks} ranks; redundancy that divides: {usable}"
        )
    if num_slots > num_experts * num_ranks:
        raise InvalidSettings(
            f"{num_slots} slots, but {num_experts} experts on {num_ranks} ranks have at most "
            f"{num_experts * num_ranks} distinct replicas (one per rank); lower the redundancy to "
            f"at most {num_experts * (num_ranks - 1)}"
        )
    return SlotLayout((num_slots // num_ranks,) * num_ranks)
