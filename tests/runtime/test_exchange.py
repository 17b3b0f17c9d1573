"""Both exchange modes bring each pair to one slot and its result back to the owner, once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.ids import LogicalIds, PhysicalIds
from moe_runtime.contracts.rows import PlainRows
from moe_runtime.contracts.stages import Computed, Placed
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.exchange.all_gather import AllGatherExchange
from moe_runtime.exchange.all_to_all import AllToAllExchange
from moe_runtime.exchange.peers import Arrived, Peers, Pending, announce
from moe_runtime.placement.maps import SlotLayout
from tests.runtime.threads import run_threads

NAN = float("nan")
MODES = [AllGatherExchange, AllToAllExchange]
Mode = type[AllGatherExchange] | type[AllToAllExchange]


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """One rank's tokens, already placed."""

    x_TZ: Tensor
    slots_TK: list[list[int]]
    weights_TK: list[list[float]]


def nothing(top_k: int) -> Sent:
    return Sent(torch.empty((0, 2)), [[]] * 0, [[0.0] * top_k] * 0)


def placed(sent: Sent, top_k: int) -> Placed:
    slots = torch.tensor(sent.slots_TK, dtype=torch.int64).reshape(-1, top_k)
    weights = torch.tensor(sent.weights_TK, dtype=torch.float32).reshape(-1, top_k)
    return Placed(sent.x_TZ, PhysicalIds(slots), LogicalIds(slots), weights)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What all ranks send, and by how much each slot multiplies."""

    layout: SlotLayout
    factors_P: tuple[float, ...]
    sent_N: tuple[Sent, ...]
    top_k: int = 1


def through(mode: Mode, case: Case, peers: Peers) -> Tensor:
    """Return what one rank gets when each slot only multiplies its rows."""
    return through_as(mode, case, peers, placed(case.sent_N[peers.rank], case.top_k))


def through_as(mode: Mode, case: Case, peers: Peers, sent: Placed) -> Tensor:
    """Likewise, for tensors that are given as they are."""
    exchange = mode(peers, case.layout, CpuBackend())
    kind = StepKind.REAL if len(sent.x_TZ) else StepKind.DUMMY
    view = announce(peers, Step(kind, Phase.DECODE), num_rows=len(sent.x_TZ))
    arrived = exchange.dispatch(sent, view)
    base, counts = case.layout.base(peers.rank), arrived.counts.counts_S
    own = torch.tensor(case.factors_P)[base : base + len(counts)]
    assert isinstance(arrived.rows, PlainRows)
    rows = arrived.rows.x_MZ * torch.repeat_interleave(own, counts)[:, None]
    assert torch.equal(arrived.received_NS.sum(dim=0), counts)
    return exchange.combine(Computed(rows, arrived.carry)).x_TZ  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("picks", [(0, 0), (0, 2), (2, 0), (2, 2)])
def test_an_expert_with_two_replicas_counts_once(mode: Mode, picks: tuple[int, int]) -> None:
    """E3 R2 S2 [[0, 1], [0, 2]], e0(x) = 2x: the output is 2x on both ranks, not 4x."""
    x = torch.tensor([[1.0, 3.0]])
    sent_N = tuple(Sent(x, [[pick]], [[1.0]]) for pick in picks)
    case = Case(SlotLayout((2, 2)), (2.0, 50.0, 2.0, 70.0), sent_N)
    for out in run_threads(lambda peers: through(mode, case, peers), num_ranks=2):
        assert torch.equal(out, 2 * x)


@pytest.mark.parametrize("mode", MODES)
def test_results_come_back_in_token_order_with_their_weights(mode: Mode) -> None:
    first = Sent(
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        [[4, 0], [1, 3], [0, 1]],
        [[0.5, 0.5], [1.0, 2.0], [0.25, 0.75]],
    )
    factors = (1.0, 10.0, 100.0, 1000.0, 10000.0)
    case = Case(SlotLayout((1, 3, 1)), factors, (first, nothing(2), nothing(2)), top_k=2)
    outs = run_threads(lambda peers: through(mode, case, peers), num_ranks=3)
    want = [[5000.5, 0.0], [0.0, 2010.0], [7.75, 7.75]]
    assert outs[0].numpy().tolist() == want
    assert [len(out) for out in outs] == [3, 0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_a_token_of_nan_spoils_no_other_token(mode: Mode) -> None:
    good = Sent(torch.tensor([[1.0, 2.0]]), [[1]], [[1.0]])
    bad = Sent(torch.tensor([[NAN, NAN]]), [[0]], [[NAN]])
    case = Case(SlotLayout((1, 1)), (1.0, 3.0), (good, bad))
    outs = run_threads(lambda peers: through(mode, case, peers), num_ranks=2)
    assert outs[0].numpy().tolist() == [[3.0, 6.0]]
    assert outs[1].isnan().all()


@dataclass(frozen=True, slots=True)
class Listening:
    """Peers that note which collectives are issued."""

    inner: Peers
    heard: list[str] = field(default_factory=list[str])

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def size(self) -> int:
        return self.inner.size

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        self.heard.append("all_gather")
        return self.inner.all_gather(rows, rows_N)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        self.heard.append("all_to_all")
        return self.inner.all_to_all(rows, sent, received)

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        del what
        return Arrived(self.all_to_all(rows, sent, received))


@pytest.mark.parametrize(
    ("mode", "collectives"),
    [
        (AllGatherExchange, ["all_gather", "all_gather", "all_to_all"]),
        (AllToAllExchange, ["all_gather", "all_to_all", "all_to_all", "all_to_all"]),
    ],
)
@pytest.mark.parametrize("busy", [0, 1, 2])
def test_collectives_are_the_same_whatever_a_ranks_tokens_are(
    mode: Mode, collectives: list[str], busy: int
) -> None:
    token = Sent(torch.ones((1, 2)), [[1]], [[1.0]])
    case = Case(SlotLayout((1, 1)), (1.0, 1.0), (token,) * busy + (nothing(1),) * (2 - busy))

    def listen(peers: Peers) -> list[str]:
        listening = Listening(peers)
        through(mode, case, listening)
        return listening.heard

    assert run_threads(listen, num_ranks=2) == [collectives, collectives]


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_may_have_no_slots(mode: Mode) -> None:
    token = Sent(torch.ones((1, 2)), [[0]], [[1.0]])
    case = Case(SlotLayout((1, 0)), (7.0,), (nothing(1), token))
    outs = run_threads(lambda peers: through(mode, case, peers), num_ranks=2)
    assert outs[1].numpy().tolist() == [[7.0, 7.0]]


def test_the_announcement_tells_every_rank_what_all_bring() -> None:
    steps = [Step(StepKind.REAL, Phase.PREFILL), Step(StepKind.DUMMY, Phase.DECODE)]
    views = run_threads(
        lambda peers: announce(peers, steps[peers.rank], num_rows=(4, 0)[peers.rank]), num_ranks=2
    )
    assert [view.rows_N for view in views] == [(4, 0)] * 2
    assert [view.steps_N for view in views] == [tuple(steps)] * 2
    assert [view.own for view in views] == steps


@pytest.mark.parametrize("mode", MODES)
def test_a_column_that_was_expanded_travels_like_any_other(mode: Mode) -> None:
    sent = Sent(torch.ones(3, 2), [[0], [0], [0]], [[2.0]] * 3)
    case = Case(SlotLayout((1, 1)), (1.0, 1.0), (sent, sent))
    ids = torch.zeros(3, dtype=torch.int64).as_strided((3, 1), (1, 0))
    weights = torch.full((3, 1), 2.0).as_strided((3, 1), (1, 0))

    def serve(peers: Peers) -> Tensor:
        return through_as(
            mode, case, peers, Placed(sent.x_TZ, PhysicalIds(ids), LogicalIds(ids), weights)
        )

    for out in run_threads(serve, num_ranks=2):
        assert (out == 2.0).all()
