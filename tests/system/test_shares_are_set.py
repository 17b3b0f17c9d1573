"""Shares reach real ranks over the real street, among migrations, and no output changes."""

import pytest

from tests.system.world import World

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.timeout(300)
def test_shares_come_into_use_before_and_after_a_migration_and_outputs_stay_right(
    world: World,
) -> None:
    ranks, operator = world.ranks, world.operator
    for _ in range(2):
        ranks.serve_until(
            lambda: operator.status().revision > 0, within_steps=4000, what="shares are set"
        )
        told = operator.status()
        assert told.shares.num_revisions > 0
        assert told.shares.predicted < told.shares.before
        world.settle_another()
    ranks.serve_until(
        lambda: operator.status().revision > 0, within_steps=4000, what="shares are set again"
    )
    ranks.require_right()
