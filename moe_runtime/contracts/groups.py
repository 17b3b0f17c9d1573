"""How many rows each group of a grouped operation has, in its two encodings.

Axes    S groups (here: local slots)

Counts [3, 0, 7, 2] and offsets [3, 3, 10, 12] describe the same groups. Read as
the wrong kind, offsets make the last group the hottest; hence two types.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GroupCounts", "GroupOffsets"]


@dataclass(frozen=True, slots=True, eq=False)
class GroupCounts:
    """Rows of each group.

    >>> GroupCounts(torch.tensor([3, 0, 7, 2])).to_offsets().ends_S.tolist()
    [3, 3, 10, 12]
    """

    counts_S: Tensor
    """int64 [S]."""

    def to_offsets(self) -> "GroupOffsets":
        """Return the same groups by where each ends."""
        return GroupOffsets(torch.cumsum(self.counts_S, dim=0))


@dataclass(frozen=True, slots=True, eq=False)
class GroupOffsets:
    """Where each group ends: inclusive running sums of the counts.

    >>> GroupOffsets(torch.tensor([3, 3, 10, 12])).to_counts().counts_S.tolist()
    [3, 0, 7, 2]
    """

    ends_S: Tensor
    """int64 [S], never falling."""

    def to_counts(self) -> GroupCounts:
        """Return the same groups by the rows of each."""
        return GroupCounts(torch.diff(self.ends_S, prepend=self.ends_S.new_zeros(1)))
