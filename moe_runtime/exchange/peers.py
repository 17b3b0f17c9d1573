"""The collectives that an exchange needs, over a process group or alone.

Axes    N ranks   M rows   Z width of a row
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from moe_runtime.contracts import torch_calls
from moe_runtime.contracts.errors import DummyStepWithTokens, ExchangeFailed
from moe_runtime.contracts.exchange_errors import ExchangeLate, RanksDisagree
from moe_runtime.contracts.step import Phase, Step, StepKind, StepView

__all__ = ["UNMARKED", "Alone", "Arrived", "GroupPeers", "Marks", "Peers", "Pending", "announce"]

_HOST = torch.device("cpu")
_DEADLINE_S = 300.0
"""Longer than any step; a group whose process group gives up earlier ends earlier."""


class Pending(Protocol):
    """Rows on their way. Until `wait` returns, nothing of them may be read, not even a number."""

    def wait(self) -> Tensor:
        """Return what has arrived; raises ExchangeFailed or ExchangeLate."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """Meets `Pending` for rows that are here already."""

    rows: Tensor

    def wait(self) -> Tensor:
        """Return them."""
        return self.rows


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

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        """Begin an all-to-all and return at once; several may be on their way, in one order.

        what    names what is exchanged, for the one who must find out why it did not arrive
        """
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

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        """Return the own rows, arrived."""
        del what  # nothing can be late
        return Arrived(self.all_to_all(rows, sent, received))


@dataclass(frozen=True, slots=True, eq=False)
class _OnTheWay:
    """Meets `Pending` for a collective of torch.distributed."""

    work: dist.Work
    sent: Tensor
    """Kept: torch reads it until the collective is done."""
    rows: Tensor
    rank: int
    what: str
    deadline_s: float

    def wait(self) -> Tensor:
        try:
            torch_calls.wait_for(self.work, deadline_s=self.deadline_s)
        except RuntimeError as error:
            if not self.work.is_completed():
                raise ExchangeLate(
                    rank=self.rank, what=self.what, deadline_s=self.deadline_s
                ) from error
            raise ExchangeFailed(rank=self.rank, cause=torch_calls.first_line(error)) from error
        return self.rows


class GroupPeers:
    """The ranks of a torch.distributed group; None is the default group.

    deadline_s    how long a collective may wait for the last rank to enter it
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, deadline_s: float = _DEADLINE_S
    ) -> None:
        self._group = group if group is not None else torch_calls.default_group()
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)
        self._deadline_s = deadline_s

    @property
    def group(self) -> dist.ProcessGroup:
        """The group itself."""
        return self._group

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._size

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        """Gather rows, raising ExchangeFailed or ExchangeLate if a rank is gone or late.

        Sent as an all-to-all in which everybody gets the same: gloo's gather goes round a ring,
        one wake-up of every process after another (measured with 8 processes on 2 cores: six
        times as long), and it takes no uneven numbers of rows.
        """
        copies = rows.repeat(self._size, *([1] * (rows.ndim - 1)))
        sent = [rows.shape[0]] * self._size
        return self.start_all_to_all(copies, sent, rows_N, what="rows that all need").wait()

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Exchange rows, raising ExchangeFailed or ExchangeLate if a rank is gone or late."""
        return self.start_all_to_all(rows, sent, received, what="rows").wait()

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        """Begin to exchange rows, raising ExchangeFailed if the group is broken already."""
        arriving = rows.new_empty((sum(received), *rows.shape[1:]))
        leaving = rows.contiguous()
        try:
            work = torch_calls.start_all_to_all(arriving, leaving, received, sent, self._group)
        except RuntimeError as error:
            raise ExchangeFailed(rank=self._rank, cause=torch_calls.first_line(error)) from error
        return _OnTheWay(work, leaving, arriving, self._rank, what, self._deadline_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Fingerprints that a rank tells with its step; 0 where nobody compares them."""

    tables: int = 0
    """Of its dispatch tables."""
    settings: int = 0
    """Of how it is about to exchange tokens, and of what it serves."""
    tokens: int = 0
    """Of its tokens, where other ranks hold them alike."""
    runtime: int = 0
    """Which of the runtimes over the group is stepped."""


UNMARKED = Marks()


def announce(
    peers: Peers,
    step: Step,
    *,
    num_rows: int,
    marks: Marks = UNMARKED,
    home: torch.device = _HOST,
) -> StepView:
    """Tell all ranks what this rank brings to the step, and learn what they bring.

    home    where the group carries tensors from

    One collective per step, before the first layer. Raises DummyStepWithTokens, and
    RanksDisagree, on every rank alike, if ranks are about to exchange in different ways, or step
    different runtimes; after both of them the group is as usable as before.
    """
    if step.kind is StepKind.DUMMY and num_rows:
        raise DummyStepWithTokens(rank=peers.rank, num_rows=num_rows)
    fingerprints = [marks.tables, marks.settings, marks.tokens, marks.runtime]
    own = [num_rows, step.kind, step.phase, *fingerprints]
    own_17 = torch.tensor([own], dtype=torch.int64, device=home)
    told_N7 = peers.all_gather(own_17, [1] * peers.size)
    columns = [torch_calls.to_ints(column) for column in told_N7.t()]
    rows, kinds, phases, tables, settings, tokens, runtimes = columns
    if len(set(settings)) > 1 or len(set(runtimes)) > 1:
        raise RanksDisagree(
            "how tokens are exchanged",
            told=list(zip(settings, runtimes, strict=True)),
            names=("settings", "runtime"),
        )
    return StepView(
        rank=peers.rank,
        rows_N=tuple(rows),
        steps_N=tuple(
            Step(StepKind(kind), Phase(phase)) for kind, phase in zip(kinds, phases, strict=True)
        ),
        marks_N=tuple(tables),
        tokens_N=tuple(tokens),
    )
