"""Exchanges that a tracer can follow: every size follows from the number of rows of one rank.

Axes    N ranks   T rows of each rank   A = N T rows of all ranks   Z width

AllGather alone is one of them: all rows go to all ranks, and each adds up its share of every
token. Ranks must bring equal numbers of rows, padding included, since no rank can tell another
how many it has; their collectives are operators that torch.export and torch.compile leave whole.
"""

from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from moe_runtime.contracts.torch_calls import all_to_all_traced, gather_traced

__all__ = ["AloneTraced", "GroupTraced", "TracedRanks"]


class TracedRanks(Protocol):
    """The ranks among which one traced layer exchanges."""

    @property
    def rank(self) -> int:
        """This rank's number."""
        ...

    @property
    def size(self) -> int:
        """N."""
        ...

    def gather(self, rows_T: Tensor) -> Tensor:
        """Return [A, ...]: the rows of all ranks, in order of rank."""
        ...

    def add_up(self, shares_AZ: Tensor) -> Tensor:
        """Return [T, Z]: the sum of all ranks' shares of this rank's tokens, in order of rank."""
        ...


@dataclass(frozen=True, slots=True)
class AloneTraced:
    """Meets `TracedRanks` for a rank alone."""

    rank: int = 0
    size: int = 1

    def gather(self, rows_T: Tensor) -> Tensor:
        """Return the rows."""
        return rows_T

    def add_up(self, shares_AZ: Tensor) -> Tensor:
        """Return the shares."""
        return shares_AZ


@dataclass(frozen=True, slots=True, eq=False)
class GroupTraced:
    """Meets `TracedRanks` over a process group."""

    group: dist.ProcessGroup

    @property
    def rank(self) -> int:
        """This rank's number."""
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """N."""
        return dist.get_world_size(self.group)

    def gather(self, rows_T: Tensor) -> Tensor:
        """Return the rows of all ranks."""
        return gather_traced(rows_T, self.group)

    def add_up(self, shares_AZ: Tensor) -> Tensor:
        """Send each rank the shares of its tokens, and add those that came."""
        num_ranks, width = self.size, shares_AZ.shape[1]
        came = all_to_all_traced(shares_AZ, self.group)
        return came.view(num_ranks, -1, width).sum(dim=0)
