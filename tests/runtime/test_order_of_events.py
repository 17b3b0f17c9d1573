"""What goes asynchronously: nothing is read before its `wait`, nothing sent is touched before it.

Peers that carry nothing until they are waited for, a coder, experts, and torch itself note
what happens, so that the order is seen whole: a device has streams where this has a list.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from moe_runtime.backends.coding import FormCoder
from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.cpu_rows import dequantise
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import RowForm, Rows
from moe_runtime.contracts.stages import Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind, StepView
from moe_runtime.exchange.all_to_all import AllToAllExchange
from moe_runtime.exchange.fused_mc2 import FusedMc2Exchange
from moe_runtime.exchange.mc2 import Mc2Exchange
from moe_runtime.exchange.peers import Peers, Pending, announce
from moe_runtime.placement.maps import SlotLayout
from tests.runtime.threads import run_threads

C = TypeVar("C")
Stages = Callable[["Noting", "NotingCoder", Placed, StepView], Tensor]

LAYOUT = SlotLayout((2, 2))
BACKEND = CpuBackend()
HOST_READS = {
    *("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__"),
    *("nonzero", "argwhere", "masked_select", "repeat_interleave"),
}
"""What a host cannot do before a device is done: read numbers, and sizes that follow from them."""


@dataclass(frozen=True, slots=True, eq=False)
class Late:
    """Meets `Pending`: everything happens when it is waited for, and only then."""

    peers: "Noting"
    rows: Tensor
    splits: tuple[Sequence[int], Sequence[int]]
    what: str

    def wait(self) -> Tensor:
        self.peers.events.append(f"wait {self.what}")
        return self.peers.inner.all_to_all(self.rows, *self.splits)


@dataclass(frozen=True, slots=True, eq=False)
class Noting:
    """Meets `Peers`."""

    inner: Peers
    events: list[str] = field(default_factory=list[str])

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def size(self) -> int:
        return self.inner.size

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        return self.inner.all_gather(rows, rows_N)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        self.events.append("exchange")
        return self.inner.all_to_all(rows, sent, received)

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        self.events.append(f"start {what}")
        return Late(self, rows, (sent, received), what)


@dataclass(frozen=True, slots=True)
class NotingCoder:
    events: list[str]

    def encode(self, x_MZ: Tensor) -> Rows:
        self.events.append("encode")
        return FormCoder(BACKEND, RowForm.INT8).encode(x_MZ)


class Reads(TorchFunctionMode):
    """Notes whenever the host reads a tensor; reads in a row are one."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        if func.__name__ in HOST_READS and self._events[-1:] != ["read"]:
            self._events.append("read")
        return func(*args, **(kwargs or {}))


def sent_by(rank: int) -> Placed:
    draw = torch.Generator().manual_seed(rank)
    ids = torch.stack([torch.randperm(4, generator=draw)[:2] for _ in range(3 + rank)])
    x = torch.randn((3 + rank, 4), generator=draw)
    return Placed(x, PhysicalIds(ids), LogicalIds(ids), torch.ones(ids.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What one rank did inside the stages, and what came of it."""

    events: list[str]
    y_TZ: Tensor


def run(stages: Stages) -> list[Seen]:
    def one(peers: Peers) -> Seen:
        noting, given = Noting(peers), sent_by(peers.rank)
        view = announce(peers, Step(StepKind.REAL, Phase.DECODE), num_rows=len(given.x_TZ))
        with Reads(noting.events):
            y_TZ = stages(noting, NotingCoder(noting.events), given, view)
        return Seen(noting.events, y_TZ)

    return run_threads(one, num_ranks=2)


def doubled(events: list[str], arrived: Dispatched[C]) -> Computed[C]:
    events.append("compute")
    return Computed(2 * dequantise(arrived.rows).float(), arrived.carry)


def direct(noting: Noting, coder: NotingCoder, given: Placed, view: StepView) -> Tensor:
    exchange = AllToAllExchange(noting, LAYOUT, BACKEND, coder)
    arrived = exchange.dispatch(given, view)
    return exchange.combine(doubled(noting.events, arrived)).x_TZ


def windows(noting: Noting, coder: NotingCoder, given: Placed, view: StepView) -> Tensor:
    exchange = Mc2Exchange(noting, LAYOUT, BACKEND, coder)
    arrived = exchange.dispatch(given, view)
    return exchange.combine(doubled(noting.events, arrived)).x_TZ


def fused(noting: Noting, coder: NotingCoder, given: Placed, view: StepView) -> Tensor:
    exchange = FusedMc2Exchange(noting, LAYOUT, BACKEND, 64, coder)
    done = exchange.run(given, view, lambda arrived: doubled(noting.events, arrived))
    assert isinstance(done, Combined)
    return done.x_TZ


COUNTS = "how many rows go to each slot"
ORDERS: dict[Stages, list[str]] = {
    direct: [
        *(f"start {COUNTS}", "encode", f"wait {COUNTS}"),
        *("start token rows", "wait token rows", "compute", "exchange"),
    ],
    windows: ["encode", "start windows of rows", "wait windows of rows", "compute", "exchange"],
    fused: [
        *(f"start {COUNTS}", "encode", f"wait {COUNTS}"),
        *("start token rows of wave 0", "start token rows of wave 1"),
        *("wait token rows of wave 0", "compute", "start results of wave 0"),
        *("wait token rows of wave 1", "compute", "start results of wave 1"),
        *("wait results of wave 0", "wait results of wave 1"),
    ],
}


@pytest.mark.parametrize("stages", ORDERS)
def test_events_come_in_the_order_of_the_contract(stages: Stages) -> None:
    for seen in run(stages):
        assert [event for event in seen.events if event != "read"] == ORDERS[stages]


def test_nothing_that_mc2_receives_is_read_by_the_host() -> None:
    for seen in run(windows):
        assert "read" not in seen.events[seen.events.index("start windows of rows") :]


@pytest.mark.parametrize("stages", [direct, fused])
def test_no_host_reads_while_counts_are_on_their_way(stages: Stages) -> None:
    for seen in run(stages):
        started, ended = (seen.events.index(f"{what} {COUNTS}") for what in ("start", "wait"))
        assert seen.events[started + 1 : ended] == ["encode"]
        assert seen.events[ended + 1] == "read", "the counts, which size what arrives"


@pytest.mark.parametrize("stages", ORDERS)
def test_what_is_sent_is_not_touched_before_it_has_left(stages: Stages) -> None:
    """Late peers send what the buffer holds when they are waited for, so this is the output."""
    for rank, seen in enumerate(run(stages)):
        sent = sent_by(rank)
        rows = dequantise(BACKEND.quantise(sent.x_TZ, RowForm.INT8)).float()
        torch.testing.assert_close(seen.y_TZ, 4 * rows, rtol=1e-6, atol=1e-6)
