"""Orders for an engine that moves experts itself, and what such an engine cannot be ordered."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from eplb_service.domain.placement import EMPTY, placement_from_ranks
from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import NackReason
from moe_runtime.vllm import Contradiction
from tests.agent.fakes import INCARNATION, LIMITS, NEVER, NEW, OLD, an_order
from tests.agent.scripts import Spent, order_of, waves_between
from worker_agent.adapters.vllm.ascend import LoopSettings, settings_faults
from worker_agent.adapters.vllm.ascend_rules import load_fault
from worker_agent.adapters.vllm.ascend_rules import order_fault as ascend_fault
from worker_agent.adapters.vllm.ascend_tuples import contents_of, maps_of, updates_of
from worker_agent.adapters.vllm.early import require_one_balancer
from worker_agent.adapters.vllm.foreign import ForeignShape, LoadAccount
from worker_agent.adapters.vllm.identity import VllmConfig
from worker_agent.agent.checks import order_fault

SHAPE = ForeignShape(
    num_layers=2,
    num_experts=3,
    num_slots=2,
    num_ranks=2,
    rank=0,
    top_k=2,
    bytes_per_expert=1,
    adapter="vllm-ascend",
    ownership=Ownership.OWN,
)
LIMITED = replace(LIMITS, engine_fault=ascend_fault)


def orders() -> list[Order]:
    """Each rank's part of the wave that exchanges experts 1 and 2 in layer 0."""
    (wave,) = waves_between(OLD, NEW, staging_rows=8)
    spent = Spent(wave, base_epoch=0, epoch=5, expires_at_step=NEVER)
    return [order_of(spent, rank=rank, incarnation=INCARNATION) for rank in range(2)]


def test_an_order_becomes_the_tuple_that_vllm_ascends_loader_expects() -> None:
    first, second = (
        updates_of(order, NEW, replace(SHAPE, rank=rank)) for rank, order in enumerate(orders())
    )
    assert first == {0: ([(1, 1)], [(1, 2)], [0, -1, 1], [0, 2, 1], 0)}
    assert second == {0: ([(0, 2)], [(0, 1)], [1, 0, -1], [3, 2, 1], 0)}


def test_what_one_rank_sends_another_receives_in_the_same_order() -> None:
    old = placement_from_ranks([[[0, 1, 2], [3, 4, 5]]], num_experts=6)
    new = placement_from_ranks([[[5, 3, 4], [1, 2, 0]]], num_experts=6)
    (wave,) = waves_between(old, new, staging_rows=8)
    spent = Spent(wave, base_epoch=0, epoch=5, expires_at_step=NEVER)
    shape = replace(SHAPE, num_layers=1, num_experts=6, num_slots=3)
    first, second = (
        updates_of(
            order_of(spent, rank=rank, incarnation=INCARNATION), new, replace(shape, rank=rank)
        )[0]
        for rank in range(2)
    )
    sent, received = first[0], second[1]
    assert [expert for _, expert in sent] == [expert for _, expert in received]
    assert len(sent) == 3


WRONG = {
    "an expert moves within a rank": ([[1, 0], [2, 0]], "change their slots within the rank"),
    "a slot left empty": ([[0, 1], [2, EMPTY]], "is left empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_its_loader_would_do_wrongly_is_refused(case: str) -> None:
    ranks, text = WRONG[case]
    after = placement_from_ranks([ranks, [[0, 1], [2, -1]]], num_experts=3)
    wrong = an_order(after)
    assert order_fault(wrong, OLD, LIMITS) is None
    fault = order_fault(wrong, OLD, LIMITED)
    assert fault is not None
    assert fault[0] is NackReason.UNSOUND
    assert text in fault[1]


def test_what_its_loader_does_rightly_is_not() -> None:
    assert order_fault(an_order(), OLD, LIMITED) is None


def test_its_maps_and_our_placements_say_the_same() -> None:
    full = placement_from_ranks([[[0, 2], [1, 0]]], num_experts=3)
    maps = maps_of(full, torch.zeros((1, 2, 3), dtype=torch.int32))
    assert maps.numpy().tolist() == [[[0, -1, 1], [1, 0, -1]]]
    assert contents_of(maps, 2).tolist() == full.phy2log.tolist()
    assert not load_fault(maps, SHAPE)


def test_an_expert_twice_on_a_rank_to_begin_with_is_refused() -> None:
    maps = torch.tensor([[[0, -1, 1], [1, -1, -1]]], dtype=torch.int32)
    (reason,) = load_fault(maps, SHAPE)
    assert "layer 0 has 1 different experts on rank 1" in reason


def test_settings_with_which_its_loop_stands_still_are_refused() -> None:
    told = SimpleNamespace(
        expert_heat_collection_interval=0,
        algorithm_execution_interval=0,
        expert_map_record_path="map.json",
    )
    reasons = settings_faults(cast("LoopSettings", told))
    assert ["never takes" in reason for reason in reasons] == [True, True, False]
    assert "expert_map_record_path" in reasons[2]


@pytest.mark.parametrize("ownership", Ownership)
def test_nothing_that_an_engine_counts_is_lost_on_the_way(ownership: Ownership) -> None:
    received = np.array([[3, 1, 2, 2], [4, 0, 4, 0]])
    held = OLD.phy2log.astype(np.int64)
    accounts = [LoadAccount(replace(SHAPE, rank=r, ownership=ownership)) for r in range(2)]
    for account in accounts:
        account.add(received, held, steps=1)
    told = [account.snapshot() for account in accounts]
    in_all = sum(int(one.received_HLS.sum()) for one in told)
    assert in_all == received.sum()
    says = [one for one in told if one.tokens_H.sum()]
    assert len(says) == (2 if ownership is Ownership.REPLICATED else 1)
    for one in says:
        assert one.sent_HLE.sum(axis=(0, 2)).tolist() == [8, 8]
        assert one.tokens_H.sum() * SHAPE.top_k == 8


NONE: dict[str, object] = {}
ASCEND: dict[str, object] = {"eplb_config": {"dynamic_eplb": True}}
RECORDING: dict[str, object] = {"eplb_config": {"expert_map_record_path": "map.json"}}


def configured(*, enable_eplb: bool, told: dict[str, object]) -> VllmConfig:
    found = SimpleNamespace(
        parallel_config=SimpleNamespace(enable_eplb=enable_eplb), additional_config=told
    )
    return cast("VllmConfig", found)


@pytest.mark.parametrize(
    ("chosen", "enable_eplb", "told"),
    [("runtime", False, NONE), ("vllm", True, NONE), ("vllm_ascend", False, ASCEND)],
)
def test_one_balancer_is_right(chosen: str, enable_eplb: bool, told: dict[str, object]) -> None:  # noqa: FBT001
    require_one_balancer(configured(enable_eplb=enable_eplb, told=told), chosen)


@pytest.mark.parametrize(
    ("chosen", "enable_eplb", "told", "text"),
    [
        ("runtime", True, NONE, "vLLM's own balancer (--enable-eplb) is on"),
        ("runtime", False, ASCEND, "vllm-ascend's own loop"),
        ("runtime", False, RECORDING, "vllm-ascend's own loop"),
        ("vllm", True, ASCEND, "vllm-ascend's own loop"),
        ("vllm_ascend", True, ASCEND, "vLLM's own balancer"),
        ("vllm", False, NONE, "(--enable-eplb) is off"),
        ("vllm_ascend", False, NONE, "dynamic_eplb) is off"),
    ],
)
def test_two_balancers_or_none_are_refused_by_name(
    chosen: str,
    enable_eplb: bool,  # noqa: FBT001
    told: dict[str, object],
    text: str,
) -> None:
    with pytest.raises(Contradiction) as refused:
        require_one_balancer(configured(enable_eplb=enable_eplb, told=told), chosen)
    assert text in str(refused.value)
