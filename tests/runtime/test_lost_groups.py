"""A step that breaks off leaves peers in the middle of it: nothing may be sent to them as its rest.

Axes    T tokens   L layers   E experts   J rows of a table
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch, StepsOverlap
from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.contracts.torch_calls import new_group
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.peers import GroupPeers, Peers
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    Chosen,
    CustomRouting,
    DenseReference,
    ExchangeMode,
    MoeError,
    MoeRuntime,
    Phase,
    SlotLayout,
    StackShape,
    Start,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
)
from moe_runtime.runtime.stepping import OneAtATime
from tests.runtime.ranks import run_ranks
from tests.runtime.stacks import kimi_like
from tests.runtime.threads import run_threads

SHAPE = kimi_like()
TABLE = np.arange(8).reshape(8, 1)
STALE = np.array([0, 1, 2, 3, 5, 4, 6, 7]).reshape(8, 1)
"""Takes two slots of rank 1 for each other."""
DIRECT = ExchangeMode.ALL_TO_ALL


def start(rank: int, num_ranks: int = 2) -> Start:
    """Eight experts, one after the other over the ranks."""
    own = 8 // num_ranks
    held = [[*range(rank * own, (rank + 1) * own)]] * 2
    return Start(SlotLayout((own,) * num_ranks), held, [TABLE, TABLE], staging_rows=1)


def serving(peers: Peers, model: SyntheticModel, mode: ExchangeMode = DIRECT) -> MoeRuntime:
    return MoeRuntime(model, start(peers.rank, peers.size), peers=peers, mode=mode)


def batch(rank: int, num_tokens: int = 5) -> Batch:
    draw = torch.Generator().manual_seed(rank)
    x_TD = torch.randn((num_tokens, SHAPE.width), generator=draw)
    return Batch.of(x_TD, ByGate(), Step(StepKind.REAL, Phase.DECODE))


def told_by(call: Callable[[], object]) -> str:
    """Return what a call ends with; of a step, whether it is what experts compute."""
    try:
        call()
    except MoeError as error:
        return f"{type(error).__name__}: {error}"
    except ValueError as error:
        return f"ValueError: {error}"
    return "served"


def right(runtime: MoeRuntime, given: Batch) -> None:
    want = DenseReference(runtime.model).forward(given.x_TD, ByGate()).float()
    torch.testing.assert_close(runtime.forward(given), want, rtol=1e-3, atol=1e-3)


def go_on_after_a_stale_table(rank: int, mode: ExchangeMode) -> list[str]:
    """Rank 1, which has no tokens, catches what the first step ends with and steps on."""
    runtime = serving(GroupPeers(new_group(), deadline_s=2), SyntheticModel(SHAPE), mode)
    if rank == 0:
        runtime.set_table(0, STALE)
    given = batch(rank, 0 if rank else 5)
    return [told_by(lambda: right(runtime, given)) for _ in range(3)]


@pytest.mark.parametrize("mode", [ExchangeMode.ALL_TO_ALL, ExchangeMode.ALL_GATHER])
@pytest.mark.processes
@pytest.mark.slow
def test_a_step_that_one_rank_breaks_off_is_never_ended_by_its_next(mode: ExchangeMode) -> None:
    waited, broke_off = run_ranks(go_on_after_a_stale_table, mode, num_ranks=2)
    assert broke_off[0].startswith("StaleTable")
    assert waited[0].startswith(("ExchangeLate", "ExchangeFailed"))
    assert all(text.startswith("GroupLost") for text in [*broke_off[1:], *waited[1:]])
    assert "StaleTable" in broke_off[2], "the first failure is named, not the last"


@dataclass(slots=True)
class Breaking:
    """A routing function of a model, which fails once it is told to."""

    breaks: bool = False

    def __call__(self, x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
        del x_TD
        if self.breaks:
            raise ValueError("a function of the model's own")
        weights_TK, experts_TK = torch.softmax(logits_TE, dim=1).topk(top_k, dim=1)
        return Chosen(experts_TK, weights_TK)


def routed_by(function: Breaking) -> StackShape:
    routing = CustomRouting(num_experts=8, top_k=3, function=function)
    return replace(SHAPE, selector=routing, activation=SwiGLU(), corrected=False)


def break_off_and_go_on(rank: int, _: None) -> list[str]:
    group, function = new_group(), Breaking()
    model = SyntheticModel(routed_by(function))
    first, second = (serving(GroupPeers(group, deadline_s=2), model) for _ in range(2))
    elsewhere = serving(GroupPeers(new_group(), deadline_s=20), model)
    function.breaks = rank == 1
    ended = [told_by(lambda: first.forward(batch(rank)))]
    function.breaks = False
    calls: list[Callable[[], object]] = [
        lambda: second.forward(batch(rank)),
        lambda: first.set_table(0, TABLE),
        lambda: second.install(0, [], second.held()[0]),
        lambda: first.load_adapters([]),
        lambda: serving(GroupPeers(group, deadline_s=2), model),
        lambda: elsewhere.forward(batch(rank)),
    ]
    return ended + [told_by(call) for call in calls]


@pytest.mark.processes
@pytest.mark.slow
def test_a_lost_group_is_refused_to_all_runtimes_over_it_and_to_no_other() -> None:
    ranks = run_ranks(break_off_and_go_on, None, num_ranks=2)
    assert ranks[1][0] == "ValueError: a function of the model's own"
    for told in ranks:
        assert all(text.startswith("GroupLost") for text in told[1:6])
        assert told[6] == "served"
    assert all("ValueError: a function of the model's own" in text for text in ranks[1][1:6])


def test_a_rank_alone_may_go_on_since_nobody_waits_for_it() -> None:
    function = Breaking(breaks=True)
    runtime = serving(Alone(), SyntheticModel(routed_by(function)))
    with pytest.raises(ValueError, match="of the model's own"):
        runtime.forward(batch(0))
    function.breaks = False
    right(serving(Alone(), SyntheticModel(SHAPE)), batch(0))
    runtime.forward(batch(0))


def test_what_is_refused_before_the_group_hears_of_it_loses_nothing() -> None:
    def attempt(peers: Peers) -> None:
        runtime = serving(peers, SyntheticModel(SHAPE))
        if peers.rank:
            with pytest.raises(ShapeMismatch):
                runtime.forward(replace(batch(1), x_TD=torch.zeros((5, 3))))
            with pytest.raises(MoeError):
                runtime.set_table(0, np.full((8, 1), 99))
        right(runtime, batch(peers.rank))

    run_threads(attempt, num_ranks=2)


def one_group_by_two_names(rank: int, _: None) -> bool:
    del rank
    unnamed, named = OneAtATime(GroupPeers()), OneAtATime(GroupPeers(dist.group.WORLD))
    with unnamed.taken("the first"):
        try:
            with named.taken("the second"):
                return False
        except StepsOverlap:
            return True


@pytest.mark.processes
@pytest.mark.slow
def test_the_default_group_is_one_group_by_whichever_name() -> None:
    assert run_ranks(one_group_by_two_names, None, num_ranks=2) == [True, True]


@dataclass(frozen=True)
class OtherExperts(SyntheticModel):
    """The gates of a model, and other weights in some of its experts."""

    changed: frozenset[int] = frozenset()

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        weights = super().expert(layer, expert, dtype)
        return replace(weights, w2_SZI=-weights.w2_SZI) if expert in self.changed else weights


@pytest.mark.parametrize("expert", [0, 5], ids=["that all read", "that two hold"])
def test_ranks_whose_experts_differ_are_told_apart_when_they_are_built(expert: int) -> None:
    layout = SlotLayout((5, 4))
    table = [*range(4), 5, 6, 7, 8]
    held = [[[0, 1, 2, 3, 5]] * 2, [[4, 5, 6, 7]] * 2]

    def attempt(peers: Peers) -> str:
        tables = [np.array(table).reshape(8, 1)] * 2
        given = Start(layout, held[peers.rank], tables, staging_rows=1)
        model = OtherExperts(SHAPE, changed=frozenset({expert} if peers.rank else ()))
        with pytest.raises(RanksDisagree) as told:
            MoeRuntime(model, given, peers=peers, mode=DIRECT)
        return str(told.value)

    told = run_threads(attempt, num_ranks=2)
    assert told[0] == told[1]
    assert f"expert {expert} of layer 0" in told[0]


def test_replicas_that_are_alike_are_served() -> None:
    def attempt(peers: Peers) -> None:
        table = np.arange(8).reshape(8, 1) + 8 * peers.rank
        held = [[*range(8)]] * 2
        given = Start(SlotLayout((8, 8)), held, [table, table], staging_rows=1)
        model = OtherExperts(SHAPE, changed=frozenset({3}))
        right(MoeRuntime(model, given, peers=peers, mode=DIRECT), batch(peers.rank))

    run_threads(attempt, num_ranks=2)


def step_in_another_order(rank: int, _: None) -> list[str]:
    """Two models with the same gates, and other experts that no two ranks hold."""
    peers = GroupPeers(new_group(), deadline_s=20)
    models = SyntheticModel(SHAPE), OtherExperts(SHAPE, changed=frozenset(range(1, 8)))
    both = [serving(peers, model) for model in models]
    turned = [both[rank], both[1 - rank]]
    return [told_by(partial(right, runtime, batch(rank))) for runtime in [*turned, *both]]


@pytest.mark.processes
@pytest.mark.slow
def test_runtimes_of_one_group_that_are_stepped_in_other_orders_are_told_apart() -> None:
    """All ranks hear of it alike, so the group goes on."""
    for told in run_ranks(step_in_another_order, None, num_ranks=2):
        assert all(text.startswith("RanksDisagree") and "runtime [" in text for text in told[:2])
        assert told[2:] == ["served", "served"]


def build_with_other_modes(rank: int, _: None) -> str:
    mode = ExchangeMode.MC2 if rank else ExchangeMode.ALL_TO_ALL
    return told_by(
        lambda: serving(GroupPeers(new_group(), deadline_s=20), SyntheticModel(SHAPE), mode)
    )


@pytest.mark.processes
@pytest.mark.slow
def test_ranks_built_for_other_modes_end_in_an_error_and_not_in_gloo() -> None:
    told = run_ranks(build_with_other_modes, None, num_ranks=2)
    assert told[0] == told[1]
    assert told[0].startswith("RanksDisagree")


@dataclass(frozen=True)
class Unreadable(SyntheticModel):
    """A model whose last expert cannot be read where this rank is."""

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        if expert == 7:
            raise ValueError("a file that is not there")
        return super().expert(layer, expert, dtype)


def build_half_and_step_another(rank: int, _: None) -> list[str]:
    """Rank 1, which holds expert 7, breaks off building what rank 0 waits for."""
    peers = GroupPeers(new_group(), deadline_s=2)
    sound = serving(peers, SyntheticModel(SHAPE))
    built = told_by(lambda: serving(peers, Unreadable(SHAPE)))
    return [built, told_by(lambda: right(sound, batch(rank)))]


@pytest.mark.processes
@pytest.mark.slow
def test_building_that_one_rank_breaks_off_is_never_ended_by_its_next_step() -> None:
    waited, broke_off = run_ranks(build_half_and_step_another, None, num_ranks=2)
    assert broke_off[0] == "ValueError: a file that is not there"
    assert waited[0].startswith(("ExchangeLate", "ExchangeFailed"))
    assert [text[:9] for text in (waited[1], broke_off[1])] == ["GroupLost"] * 2
