"""The collectives that an exchange needs, over a process group or alone.

Axes    N ranks   M rows   Z width of a row
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from moe_runtime.contracts import torch_calls
from moe_runtime.contracts.errors import DummyStepWithTokens, ExchangeFailed
from moe_runtime.contracts.step import Phase, Step, StepKind, StepView

__all__ = ["Alone", "GroupPeers", "Peers", "announce"]


class Peers(Protocol):
    """The ranks of a group. Every rank must call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        """Return the rows of all ranks, in order of rank; rows_N[r] of them are rank r's."""
        ...

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send sent[r] rows to each rank, in order, and return received[r] rows from each."""
        ...


class Alone:
    """A group of one, without a process group: everything sent arrives at once."""

    rank = 0
    size = 1

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        """Return the own rows."""
        return self.all_to_all(rows, rows_N, rows_N)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Return the own rows."""
        assert list(sent) == list(received) == [rows.shape[0]]
        return rows


class GroupPeers:
    """The ranks of a torch.distributed group; None is the default group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._size

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        """Gather rows, raising ExchangeFailed if a rank is gone or late.

        Sent as an all-to-all in which everybody gets the same: gloo's gather goes round a ring,
        one wake-up of every process after another (measured with 8 processes on 2 cores: six
        times as long), and it takes no uneven numbers of rows.
        """
        copies = rows.repeat(self._size, *([1] * (rows.ndim - 1)))
        return self.all_to_all(copies, [rows.shape[0]] * self._size, rows_N)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Exchange rows, raising ExchangeFailed if a rank is gone or late."""
        arrived = rows.new_empty((sum(received), *rows.shape[1:]))
        try:
            torch_calls.all_to_all(arrived, rows.contiguous(), received, sent, self._group)
        except RuntimeError as error:
            raise ExchangeFailed(rank=self._rank, cause=torch_calls.first_line(error)) from error
        return arrived


def announce(peers: Peers, step: Step, *, num_rows: int) -> StepView:
    """Tell all ranks what this rank brings to the step, and learn what they bring.

    One collective per step, before the first layer. Raises DummyStepWithTokens.
    """
    if step.kind is StepKind.DUMMY and num_rows:
        raise DummyStepWithTokens(rank=peers.rank, num_rows=num_rows)
    own = torch.tensor([[num_rows, step.kind, step.phase]], dtype=torch.int64)
    told_N3 = peers.all_gather(own, [1] * peers.size)
    rows, kinds, phases = (torch_calls.to_ints(column) for column in told_N3.t())
    return StepView(
        rank=peers.rank,
        rows_N=tuple(rows),
        steps_N=tuple(
            Step(StepKind(kind), Phase(phase)) for kind, phase in zip(kinds, phases, strict=True)
        ),
    )
