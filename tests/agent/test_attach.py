"""Real ranks attach: with a controller that names a placement, and without any controller."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from eplb_service.domain.errors import AttachRefused, InvalidSettings
from eplb_service.domain.ids import Epoch
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.protocol.messages import Hello, Welcome
from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.runtime import (
    Alone,
    ExchangeMode,
    MoeRuntime,
    Scoring,
    SelectorSettings,
    SlotLayout,
    Start,
    SyntheticModel,
)
from tests.agent.scripts import Script, own_shares
from tests.agent.serving import Case, random_placement, served
from tests.runtime.ranks import run_ranks
from tests.runtime.stacks import kimi_like, random_layout
from worker_agent.adapters.runtime import seat_of
from worker_agent.main import attach_over
from worker_agent.settings.settings import AgentSettings

CASE = Case(2, 2, 3, 4)
EPOCH = Epoch(17)


def two_placements() -> tuple[Placement, Placement]:
    draw = np.random.default_rng(8)
    return random_placement(CASE, draw), random_placement(CASE, draw)


class Remembering(Script):
    """Knows what the deployment served last, before the group restarted."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self._placement = placement

    def welcome(self, hello: Hello) -> Welcome:
        return replace(
            super().welcome(hello),
            epoch=EPOCH,
            placement=self._placement,
            shares=own_shares(self._placement, hello.profile.rank),
        )


def attach_told_the_same(rank: int, payload: None) -> tuple[int, list[int]]:
    """Run on every rank: both are told to load the last settled placement."""
    del payload
    initial, settled = two_placements()
    script = Remembering(settled)
    with served(CASE, rank, initial, script) as serving:
        serving.require_content(settled)
        for _ in range(30):
            serving.step()
        epoch = serving.hook.state().epoch
    assert script.hellos[-1].placement.digest() == settled.digest()
    report = script.reports[-1]
    assert report.epoch == EPOCH
    assert report.sent_total.tolist() == [2 * report.steps.tokens] * CASE.layers
    assert report.steps.tokens > 0
    return epoch, [hello.status.served.epoch for hello in script.hellos]


def attach_told_differently(rank: int, payload: None) -> int:
    """Run on every rank: only rank 0's controller remembers anything."""
    del payload
    initial, settled = two_placements()
    script = Remembering(settled) if rank == 0 else Script()
    with served(CASE, rank, initial, script) as serving:
        serving.require_content(initial)
        for _ in range(5):
            serving.step()
        return serving.hook.state().epoch


def attach_with_another_model(rank: int, payload: None) -> str:
    """Run on every rank: rank 1's model has a layer more."""
    del payload
    case = Case(2, 2 + rank, 3, 4)
    placement = random_placement(case, np.random.default_rng(8))
    with pytest.raises(RanksDisagree) as refused, served(case, rank, placement, Script()):
        pass
    return str(refused.value)


def attach_with_other_settings(rank: int, payload: None) -> str:
    """Run on every rank: rank 1 would serve on over corruption."""
    del payload
    placement = random_placement(CASE, np.random.default_rng(8))
    differ = served(CASE, rank, placement, Script(), on_corruption="serve" if rank else "fail")
    with pytest.raises(AttachRefused) as refused, differ:
        pass
    return str(refused.value)


def attach_without_slots(rank: int, payload: None) -> list[int]:
    """Run on every rank: rank 1 has tokens and no experts."""
    del payload
    placement = placement_from_ranks([[[0, 1, 2, 3], []]], num_experts=4)
    script = Script()
    with served(Case(2, 1, 4, 4), rank, placement, script) as serving:
        for _ in range(12):
            serving.step()
    assert script.hellos[0].shape.bytes_per_expert > 0
    return list(script.reports[-1].received.shape)


@pytest.mark.processes
@pytest.mark.slow
def test_a_restarted_group_serves_what_the_controller_tells_all_its_ranks() -> None:
    assert run_ranks(attach_told_the_same, None, num_ranks=2) == [(EPOCH, [0, EPOCH])] * 2


@pytest.mark.processes
@pytest.mark.slow
def test_a_group_that_is_told_two_things_serves_its_initial_placement() -> None:
    assert run_ranks(attach_told_differently, None, num_ranks=2) == [0, 0]


@pytest.mark.processes
@pytest.mark.slow
def test_ranks_of_different_models_do_not_start_and_are_told_so() -> None:
    for told in run_ranks(attach_with_another_model, None, num_ranks=2):
        assert "must be the same on every rank, but is not: model" in told


@pytest.mark.processes
@pytest.mark.slow
def test_ranks_of_different_settings_do_not_start_and_are_told_so() -> None:
    for told in run_ranks(attach_with_other_settings, None, num_ranks=2):
        assert "ranks [1] of 2 came with another model, layout of slots or settings" in told


@pytest.mark.processes
@pytest.mark.slow
def test_a_rank_may_attach_without_slots() -> None:
    assert run_ranks(attach_without_slots, None, num_ranks=2) == [[1, 4], [1, 0]]


@pytest.mark.parametrize("layers", [(3,), (4, 3), (3, 3), (3, 4, 5)])
def test_layers_named_for_another_model_are_refused_before_anybody_is_waited_for(
    layers: tuple[int, ...],
) -> None:
    settings = AgentSettings(endpoint="script", model_layers=layers)
    with pytest.raises(InvalidSettings, match="expected 2 numbers"):
        attach_over(alone(), Script(), settings=settings)


def test_an_engine_on_another_device_than_the_settings_name_is_refused() -> None:
    settings = AgentSettings(endpoint="script", device="npu:3")
    with pytest.raises(InvalidSettings, match="device is npu:3, but the engine is on cpu"):
        attach_over(alone(), Script(), settings=settings)
    with pytest.raises(ValidationError, match="device"):
        AgentSettings(endpoint="script", device="gpu:0")


def alone() -> MoeRuntime:
    case = Case(1, 2, 4, 4)
    placement = random_placement(case, np.random.default_rng(8))
    start = Start(
        SlotLayout(placement.layout.slots_per_rank),
        placement.phy2log,
        even_shares(placement, Ownership.OWN).table_of(0),
        staging_rows=1,
    )
    return MoeRuntime(
        SyntheticModel(case.shape()), start, peers=Alone(), mode=ExchangeMode.ALL_GATHER
    )


def test_a_rank_says_in_how_many_groups_its_router_divides_the_experts() -> None:
    shape = replace(
        kimi_like(num_layers=1, num_experts=8, top_k=2, width=4),
        selector=SelectorSettings(
            num_experts=8, top_k=2, scoring=Scoring.SIGMOID, num_groups=4, kept_groups=2
        ),
    )
    start = random_layout(shape, (9,), seed=1).start(0)
    mode = ExchangeMode.ALL_GATHER
    runtime = MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=mode)
    assert seat_of(runtime).shape.num_groups == 4
