"""A rank that is late, or never ready, delays or drops the wave for all; nobody switches alone."""

import pytest

from tests.system.controller import EXPIRY_STEPS, REPORT_EVERY
from tests.system.rank import AGREE_EVERY, NUM_RANKS
from tests.system.world import HELD_RANK, World

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LATE_STEPS = 150
OTHERS = [rank for rank in range(NUM_RANKS) if rank != HELD_RANK]


def test_a_rank_that_stages_late_delays_all(held: World) -> None:
    require_all_wait(held)
    held.ranks.hold_rounds(HELD_RANK, is_on=False)
    require_all_switch(held)


def test_a_rank_that_is_armed_late_delays_those_that_are_armed(held: World) -> None:
    arm_all_but_one(held)
    require_all_wait(held)
    held.ranks.lose_arms(HELD_RANK, is_on=False)
    require_all_switch(held)


def test_a_rank_that_never_stages_makes_all_drop_at_the_expiry(held: World) -> None:
    require_all_drop(held)
    held.ranks.hold_rounds(HELD_RANK, is_on=False)
    require_later_plan(held)


def test_a_rank_that_is_never_armed_makes_all_drop_at_the_expiry(held: World) -> None:
    arm_all_but_one(held)
    require_all_drop(held)
    held.ranks.lose_arms(HELD_RANK, is_on=False)
    require_later_plan(held)


def arm_all_but_one(held: World) -> None:
    """All ranks have staged, the decision is on record, and one does not hear of it."""
    held.ranks.lose_arms(HELD_RANK, is_on=True)
    held.ranks.hold_rounds(HELD_RANK, is_on=False)
    held.await_all_but_one("armed", "staged")


def require_all_wait(held: World) -> None:
    epoch = held.ranks.epoch
    for seen in held.ranks.steps(*held.ranks.serve(LATE_STEPS)):
        assert {one.epoch for one in seen} == {epoch}
        assert all(one.is_migrating for one in seen), "the wave was dropped"


def require_all_switch(held: World) -> None:
    ranks, epoch, waited = held.ranks, held.ranks.epoch, held.ranks.num_steps
    held.calm_down()
    ranks.require_right()
    switched = {next(one.step for one in seen if one.epoch == epoch + 1) for seen in ranks.seen}
    (step,) = switched
    assert step >= waited
    assert step % AGREE_EVERY == 0


def require_all_drop(held: World) -> None:
    ranks, epoch = held.ranks, held.ranks.epoch
    begun = max((one.step for one in ranks.seen[0] if not one.is_migrating), default=-1) + 1
    ranks.serve_until(
        lambda: not ranks.seen[OTHERS[0]][-1].is_migrating,
        within_steps=2 * EXPIRY_STEPS,
        what="the wave expires",
    )
    held.calm_down()
    ranks.require_right()
    # The odd rank may still wait for the end of a transfer that all began; it dropped the wave too.
    dropped = {
        next(one.step for one in ranks.seen[rank][begun + 1 :] if not one.is_migrating)
        for rank in OTHERS
    }
    (step,) = dropped
    assert step % AGREE_EVERY == 0
    assert step >= begun + EXPIRY_STEPS - REPORT_EVERY, "not by its expiry"
    assert ranks.epoch == epoch, "somebody switched"
    running = held.operator.status().operation.running
    assert (running.phase, running.wave) == ("stopped", 0)


def require_later_plan(held: World) -> None:
    held.settle_another()
    held.ranks.require_right()
    assert not any(seen[-1].is_migrating for seen in held.ranks.seen)
