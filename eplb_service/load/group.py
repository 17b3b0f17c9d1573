"""What reports are held against: the group that sends them and the placement that it serves."""

from dataclasses import dataclass, field

from eplb_service.domain.deployment import CountMeaning, RankProfile
from eplb_service.domain.ids import Digest, Epoch
from eplb_service.domain.placement import EMPTY, Placement
from eplb_service.domain.shares import Ownership


@dataclass(frozen=True, slots=True)
class WindowTerms:
    """How often ranks report and how much history a window holds."""

    report_steps: int = 10
    """Ranks cut a report at every step that this divides."""
    interval_steps: int = 50
    """Steps between two cuts that are kept; a multiple of report_steps."""
    num_intervals: int = 6
    """Intervals that a full window encloses."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One deployment's ranks at one epoch."""

    epoch: Epoch
    placement: Placement
    profiles: tuple[RankProfile, ...]
    """[N]"""
    top_k: int
    digest: Digest = field(init=False)
    """Of the placement; kept, as the two below, since every report is held against it."""
    has_empty: bool = field(init=False)
    """Whether any slot is declared empty."""
    most_tokens: int = field(init=False)
    """Largest counter whose sums over all slots and ranks stay within 64 bits."""

    def __post_init__(self) -> None:
        most = (2**63 - 1) // (self.placement.layout.num_slots * self.num_ranks)
        object.__setattr__(self, "digest", self.placement.digest())
        object.__setattr__(self, "has_empty", bool((self.placement.phy2log == EMPTY).any()))
        object.__setattr__(self, "most_tokens", most)

    @property
    def num_ranks(self) -> int:
        """N."""
        return len(self.profiles)

    def counts_all_slots(self, rank: int) -> bool:
        """Whether the rank counts tokens of every slot of the group, not of its own slots."""
        return self.profiles[rank].counting.meaning is not CountMeaning.RECEIVED

    def num_columns(self, rank: int) -> int:
        """Slots that the rank's reports have a column for."""
        layout = self.placement.layout
        return layout.num_slots if self.counts_all_slots(rank) else layout.slots_per_rank[rank]

    def columns(self, rank: int) -> slice:
        """Where the rank's columns lie among all slots."""
        layout = self.placement.layout
        return slice(0, layout.num_slots) if self.counts_all_slots(rank) else layout.slots_of(rank)

    @property
    def num_counters(self) -> int:
        """How many ranks count the same token as received; the sum is divided by it."""
        if self.profiles[0].counting.meaning is CountMeaning.REPLICATED:
            return self.profiles[0].counting.num_counters
        return 1

    @property
    def num_senders(self) -> int:
        """How many ranks count the same token as sent, for one that counts it as received."""
        is_replicated = self.profiles[0].ownership is Ownership.REPLICATED
        return self.num_ranks if is_replicated and not self.counts_all_slots(0) else 1
