"""Outputs never change: 1,000 steps while the placement changes all the time."""

from itertools import pairwise

import pytest

from tests.system.rank import SHAPE
from tests.system.world import World

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NUM_STEPS = 1000


@pytest.mark.timeout(300)
def test_outputs_stay_right_for_a_thousand_steps_under_forced_rebalancing(world: World) -> None:
    ranks, operator = world.ranks, world.operator
    first, epoch = ranks.num_steps, ranks.epoch
    while ranks.num_steps < first + NUM_STEPS:
        operator.move()
        ranks.serve_until(operator.is_calm, within_steps=4000, what="the plan is carried out")
    ranks.require_right()
    steps = ranks.seen[0][first:]
    switches = sum(a.epoch != b.epoch for a, b in pairwise(steps))
    assert switches == ranks.epoch - epoch, "an epoch was spent for nothing"
    assert switches >= 20, f"only {switches} switches in {len(steps)} steps"


def test_every_token_that_was_sent_was_received_by_its_expert(world: World) -> None:
    world.settle_another()
    counts = world.ranks.counts()
    assert all(one.dummy_steps for one in counts)
    assert any(seen.num_tokens == 0 for seen in world.ranks.seen[0])
    tokens = sum(one.tokens for one in counts)
    assert tokens > 0
    for layer in range(SHAPE.num_layers):
        sent = [sum(column) for column in zip(*(one.sent[layer] for one in counts), strict=True)]
        received = [
            sum(column) for column in zip(*(one.received[layer] for one in counts), strict=True)
        ]
        assert sent == received
        assert sum(sent) == tokens * SHAPE.selector.top_k
    world.ranks.require_right()
