"""A few ranks of a group, as a group of their own.

Axes    N ranks of the group   M rows

Their collectives are the group's, with nothing for anyone outside, so every rank of the group
takes part at once, each with the team it is in. No communicator is made, and none is shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from moe_runtime.exchange.peers import Peers, Pending

__all__ = ["TeamPeers"]


@dataclass(frozen=True, slots=True)
class TeamPeers:
    """Meets `Peers` for the members of one team, numbered in order of rank."""

    peers: Peers
    members: tuple[int, ...]
    """Ranks of the group, rising; this rank is one of them."""

    def __post_init__(self) -> None:
        assert self.peers.rank in self.members
        assert list(self.members) == sorted(set(self.members))

    @property
    def rank(self) -> int:
        """This rank's number in the team."""
        return self.members.index(self.peers.rank)

    @property
    def size(self) -> int:
        """Ranks in the team."""
        return len(self.members)

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        """Return the rows of all members, in their order."""
        copies = rows.repeat(self.size, *([1] * (rows.ndim - 1)))
        return self.all_to_all(copies, [rows.shape[0]] * self.size, rows_N)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send rows to members, and return what they sent, in their order."""
        return self.peers.all_to_all(rows, self._over_all(sent), self._over_all(received))

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        """Begin an all-to-all between the members."""
        return self.peers.start_all_to_all(
            rows, self._over_all(sent), self._over_all(received), what=what
        )

    def _over_all(self, rows: Sequence[int]) -> list[int]:
        """Return a number for each rank of the group, zero outside the team."""
        over = [0] * self.peers.size
        for member, count in zip(self.members, rows, strict=True):
            over[member] = count
        return over
