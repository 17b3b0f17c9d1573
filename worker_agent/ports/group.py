"""The ranks of one group, as far as the agreement needs them."""

from collections.abc import Sequence
from typing import Protocol


class GroupPort(Protocol):
    """One control collective, on a group of its own."""

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        ...

    @property
    def num_ranks(self) -> int:
        """Ranks in the group."""
        ...

    def agree(self, vector: Sequence[int]) -> tuple[int, ...]:
        """Return the elementwise minimum over all ranks of vectors of signed 64-bit integers.

        Collective: every rank calls it at the same steps, in the same order, with the same
        length. It waits for the peers and for nothing else. Raises GroupLost.
        """
        ...
