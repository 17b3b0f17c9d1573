"""A rank that stages late, or never, delays or drops the wave for all; nobody switches alone."""

import pytest

from tests.system.controller import EXPIRY_STEPS, REPORT_EVERY
from tests.system.rank import AGREE_EVERY, NUM_RANKS
from tests.system.world import HELD_RANK, World

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LATE_STEPS = 150


def test_a_rank_that_stages_late_delays_all(held: World) -> None:
    ranks, epoch = held.ranks, held.ranks.epoch
    first, until = ranks.serve(LATE_STEPS)
    for seen in ranks.steps(first, until):
        assert {one.epoch for one in seen} == {epoch}
        assert all(one.is_migrating for one in seen), "the wave was dropped"
    ranks.hold_rounds(HELD_RANK, is_on=False)
    held.calm_down()
    ranks.require_right()
    switched = [_first_at(held, epoch + 1, rank) for rank in range(NUM_RANKS)]
    assert len(set(switched)) == 1
    assert switched[0] >= until
    assert switched[0] % AGREE_EVERY == 0


def test_a_rank_that_never_stages_makes_all_drop_at_the_expiry(held: World) -> None:
    ranks, epoch = held.ranks, held.ranks.epoch
    started = max((one.step for one in ranks.seen[0] if not one.is_migrating), default=-1)
    ranks.serve_until(
        lambda: not ranks.seen[0][-1].is_migrating,
        within_steps=2 * EXPIRY_STEPS,
        what="the wave expires",
    )
    held.calm_down()
    ranks.require_right()
    # The odd rank still waits for the end of a transfer that all began; the wave it has dropped.
    others = [rank for rank in range(NUM_RANKS) if rank != HELD_RANK]
    dropped = [_first_free(held, started + 1, rank) for rank in others]
    assert len(set(dropped)) == 1
    assert dropped[0] % AGREE_EVERY == 0
    assert dropped[0] >= started + EXPIRY_STEPS - REPORT_EVERY, "not by its expiry"
    assert ranks.epoch == epoch, "somebody switched"
    running = held.operator.status().operation.running
    assert (running.phase, running.wave) == ("stopped", 0)
    ranks.hold_rounds(HELD_RANK, is_on=False)
    held.settle_another()
    ranks.require_right()
    assert not ranks.seen[HELD_RANK][-1].is_migrating


def _first_at(world: World, epoch: int, rank: int) -> int:
    return next(one.step for one in world.ranks.seen[rank] if one.epoch == epoch)


def _first_free(world: World, after: int, rank: int) -> int:
    """The first step at which the rank holds no order again."""
    seen = world.ranks.seen[rank][after:]
    held_from = next(index for index, one in enumerate(seen) if one.is_migrating)
    return next(one.step for one in seen[held_from:] if not one.is_migrating)
