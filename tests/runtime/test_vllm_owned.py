"""What is done with the layers of a loaded model before they serve, on ranks that are threads.

An expert's weights are all its number times seven plus one, so that a slot tells whom it holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import UnplacedExpert
from moe_runtime.contracts.exchange_errors import GroupLost
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.step import Phase, StepKind
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.peers import Alone, Peers
from moe_runtime.experts.activations import SwiGLU
from moe_runtime.routing.kinds import Uncorrected
from moe_runtime.vllm import CannotOwn, Contradiction, OwnedModel
from moe_runtime.vllm.binding import Loaded, bind_stack
from moe_runtime.vllm.content import mark_of, require_as_loaded
from moe_runtime.vllm.memory import Memory
from moe_runtime.vllm.owning import ServedPlacement
from moe_runtime.vllm.reading import Reading
from moe_runtime.vllm.seams import Runner
from moe_runtime.vllm.stack import Ranks, StackFacts, StepScope
from tests.runtime.threads import run_threads

NUM_EXPERTS, TOP_K, NUM_RANKS = 4, 1, 2
GARBAGE = -9.0


@dataclass
class Silent:
    """A router that nobody listens to."""

    capture_fn: Callable[[Tensor], None] | None = None


def loaded(rank: int, num_slots: int) -> Tensor:
    """[S] what vLLM's loader leaves: experts in order, and garbage beyond them."""
    first = rank * num_slots
    numbers = range(first, first + num_slots)
    return torch.tensor([7.0 * n + 1 if n < NUM_EXPERTS else GARBAGE for n in numbers])


def owned(peers: Peers, *, num_slots: int, ranks: Ranks | None = None) -> OwnedModel:
    values = loaded(peers.rank, num_slots)
    w13, w2 = values.repeat(2, 1).t()[:, :, None].clone(), values[:, None, None].clone()
    selector = SelectorSettings(num_experts=NUM_EXPERTS, top_k=TOP_K, scoring=Scoring.SOFTMAX)
    reading = Reading(selector, Uncorrected(), SwiGLU())
    facts = StackFacts(("model.layers.0.mlp.experts",), NUM_EXPERTS, TOP_K, 1)
    bound = bind_stack(
        Loaded(facts, [DenseWeights(w13, w2)], [reading], [Silent()]),
        ranks or Ranks(peers, Alone(), is_replicated=False),
        staging_rows=1,
    )
    home = ServedPlacement(bound.content_P[None], bound.stack.tables())
    layer = SimpleNamespace(w13_weight=w13, w2_weight=w2)
    runner = SimpleNamespace(layer_name="model.layers.0.mlp.experts", routed_experts=layer)
    memory = Memory(per_expert=12, spare=0, staging=12)
    return OwnedModel(
        bound.stack, bound.filler, home, (cast("Runner", runner),), bound.num_filled, memory, ""
    )


def weights(model: OwnedModel) -> list[float]:
    """[S] what lies in each slot, the same in all of its tensors."""
    named = model.stack.slots.weights(0).named()
    assert torch.equal(named["w13"][:, 0, 0], named["w2"][:, 0, 0])
    return [float(value) for value in named["w2"][:, 0, 0]]


def test_a_map_from_a_file_is_served_from_the_first_step_on() -> None:
    wanted = np.array([[3, 1, 0, 0, 2, 1]])

    def work(peers: Peers) -> tuple[list[float], list[int], list[int]]:
        model = owned(peers, num_slots=3)
        model.start_in(wanted)
        return (
            weights(model),
            model.stack.held()[0].tolist(),
            model.stack.tables()[0, :, 0].tolist(),
        )

    (first, held_0, table_0), (second, held_1, table_1) = run_threads(work, num_ranks=NUM_RANKS)
    assert (first, second) == ([22, 8, 1], [1, 15, 8])
    assert [*held_0, *held_1] == wanted[0].tolist()
    # Each rank uses a replica of experts 0 and 1 of its own: its place among them is its rank.
    assert (table_0, table_1) == ([2, 1, 4, 0], [3, 5, 4, 0])


def test_ranks_that_were_given_different_maps_do_not_start() -> None:
    def work(peers: Peers) -> str:
        model = owned(peers, num_slots=2)
        before = weights(model)
        with pytest.raises(Contradiction) as refused:
            model.start_in(np.array([[0, 1, 2, 3]]) if peers.rank else None)
        assert weights(model) == before
        return str(refused.value)

    assert all("different ones" in text for text in run_threads(work, num_ranks=NUM_RANKS))


def test_new_weights_go_to_where_their_experts_are() -> None:
    """Case F40: ranks hold [3, 1] and [0, 2]; expert e of the new checkpoint is 10 e + 3."""

    def work(peers: Peers) -> list[list[float]]:
        model = owned(peers, num_slots=2)
        model.start_in(np.array([[3, 1, 0, 2]]))
        before = weights(model)
        placement = model.served()
        model.go_home()
        for stack in model.stack.slots.weights(0).named().values():
            for slot in range(2):
                stack[slot] = 10.0 * (2 * peers.rank + slot) + 3
        model.refill()
        model.return_to(placement)
        return [before, weights(model)]

    (before_0, after_0), (before_1, after_1) = run_threads(work, num_ranks=NUM_RANKS)
    assert (before_0, before_1) == ([22, 8], [1, 15])
    assert (after_0, after_1) == ([33, 13], [3, 23])


def test_an_engine_that_gives_each_rank_a_piece_tells_tokens_from_padding() -> None:
    """Five tokens in pieces of three rows: the second piece ends in a row of padding; F13."""

    def work(peers: Peers) -> int:
        ranks = Ranks(peers, Alone(), is_replicated=False, piece=peers.rank)
        stack = owned(peers, num_slots=2, ranks=ranks).stack
        stack.enter(StepScope(StepKind.REAL, Phase.PREFILL, 5))
        y_TZ = stack.forward(0, torch.ones(3, 1), torch.eye(3, 4), None)
        assert [bool(y) for y in y_TZ[:, 0]] == [True, True, not peers.rank]
        counters = stack.counters()
        assert int(counters.tokens_H.sum()) == 3 - peers.rank
        assert counters.padding_rows == peers.rank
        return int(counters.received_HLS.sum())

    assert sum(run_threads(work, num_ranks=NUM_RANKS)) == 5 * TOP_K


def test_an_engine_whose_forward_broke_off_steps_no_more() -> None:
    """Here on both ranks; on one alone, its next step would be the rest of the peer's first."""

    def work(peers: Peers) -> None:
        stack = owned(peers, num_slots=2).stack
        table_EJ = stack.tables()[0]
        stack.set_table(0, table_EJ * 0 - 1)
        with pytest.raises(UnplacedExpert):
            stack.forward(0, torch.ones(3, 1), torch.eye(3, 4), None)
        stack.set_table(0, table_EJ)
        with pytest.raises(GroupLost, match="UnplacedExpert"):
            stack.forward(0, torch.ones(3, 1), torch.eye(3, 4), None)

    run_threads(work, num_ranks=NUM_RANKS)


def test_weights_that_are_repacked_after_loading_are_not_served() -> None:
    as_loaded = DenseWeights(torch.rand(2, 4, 3), torch.rand(2, 3, 2))
    mark = mark_of(as_loaded, "layers.1")
    require_as_loaded(as_loaded, "layers.1", mark)
    as_loaded.w13_SFZ[0] = as_loaded.w13_SFZ[0].flip(0)
    with pytest.raises(CannotOwn, match=r"layers\.1 .* repacked after they were loaded"):
        require_as_loaded(as_loaded, "layers.1", mark)
    elsewhere = DenseWeights(as_loaded.w13_SFZ.clone(), as_loaded.w2_SZI)
    with pytest.raises(CannotOwn, match="repacked"):
        require_as_loaded(elsewhere, "layers.1", mark_of(as_loaded, "layers.1"))
    turned = DenseWeights(torch.rand(2, 3, 4).transpose(1, 2), torch.rand(2, 3, 2))
    with pytest.raises(CannotOwn, match="w13 was repacked while"):
        mark_of(turned, "layers.1")
