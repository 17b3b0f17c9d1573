"""Real ranks attach: with a controller that names a placement, and without any controller."""

from dataclasses import replace

import numpy as np
import pytest

from eplb_service.domain.ids import Epoch
from eplb_service.domain.placement import Placement
from eplb_service.protocol.messages import Hello, Welcome
from tests.agent.scripts import Script, own_shares
from tests.agent.serving import Case, random_placement, served
from tests.runtime.ranks import run_ranks

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


pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_restarted_group_serves_what_the_controller_tells_all_its_ranks() -> None:
    assert run_ranks(attach_told_the_same, None, num_ranks=2) == [(EPOCH, [0, EPOCH])] * 2


def test_a_group_that_is_told_two_things_serves_its_initial_placement() -> None:
    assert run_ranks(attach_told_differently, None, num_ranks=2) == [0, 0]
