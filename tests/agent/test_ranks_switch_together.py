"""A rank that stages late, never or wrong: all wait, or all drop; nobody switches alone."""

from dataclasses import dataclass

import numpy as np
import pytest

from eplb_service.domain.moves import align
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import PlannedWave
from eplb_service.protocol.messages import CutOver, Dropped, DropReason
from tests.agent.scripts import Script, Spent, order_of, waves_between
from tests.agent.serving import Case, Serving, kinds, random_placement, served
from tests.runtime.ranks import run_ranks
from worker_agent.adapters.mover import TorchMover
from worker_agent.ports.weights import WeightsEvent

CASE = Case(2, 2, 3, 4)
ODD_RANK = 1
LATE_POLLS = 60
NEVER = 1 << 30


class LateMover(TorchMover):
    """On the odd rank, tells that a round is over many steps after it is."""

    num_polls = 0

    def poll(self) -> WeightsEvent | None:
        self.num_polls += 1
        if self.rank == ODD_RANK and self.num_polls < LATE_POLLS:
            return None
        return super().poll()


class SilentMover(TorchMover):
    """On the odd rank, never tells that a round is over."""

    def poll(self) -> WeightsEvent | None:
        return None if self.rank == ODD_RANK else super().poll()


class FlippingMover(TorchMover):
    """On the odd rank, a bit flips between sender and receiver."""

    def _verify(self, row: int, sent: bytes) -> None:
        if self.rank == ODD_RANK:
            self.memory.staging(row)["w2"].view(-1)[0] *= -1
        super()._verify(row, sent)


@dataclass(frozen=True, slots=True)
class Plot:
    """What the odd rank's mover does, and when the wave expires."""

    mover: type[TorchMover]
    expires_at_step: int


@dataclass(frozen=True, slots=True)
class Told:
    """How one rank saw the wave end."""

    words: list[str]
    steps: list[int]
    """Of CutOver or Dropped; an Arm that comes after the end is answered by it once more."""
    reasons: list[DropReason]
    epoch: int


def the_wave() -> tuple[Placement, PlannedWave]:
    """A wave in which both ranks send and receive."""
    draw = np.random.default_rng(3)
    old, new = (random_placement(CASE, draw) for _ in range(2))
    wave, *_ = waves_between(old, align(old, new), staging_rows=6)
    targets = wave.placement.layout.rank_of_slot()[wave.content.transfers[:, 3]]
    assert set(targets.tolist()) == {0, 1}
    return old, wave


def play(rank: int, plot: Plot) -> Told:
    """Run on every rank: steps until the wave has ended one way or the other, and some more."""
    old, wave = the_wave()
    script = Script()
    with served(CASE, rank, old, script, staging_rows=6, mover=plot.mover) as serving:
        spent = Spent(wave, base_epoch=0, epoch=1, expires_at_step=plot.expires_at_step)
        script.say(order_of(spent, rank=rank, incarnation=script.incarnation))
        _step_past_the_end(serving, plot)
        epoch = serving.hook.state().epoch
        serving.require_content(wave.placement if epoch == 1 else old)
    ends = [word for word in script.words if isinstance(word, CutOver | Dropped)][:1]
    return Told(
        words=kinds(script.words),
        steps=[word.step for word in ends],
        reasons=[word.reason for word in ends if isinstance(word, Dropped)],
        epoch=epoch,
    )


def _step_past_the_end(serving: Serving, plot: Plot) -> None:
    if plot.mover is LateMover:
        serving.step_until_epoch(1)
    num_more = 40 if plot.expires_at_step == NEVER else plot.expires_at_step + 40
    while serving.num_steps < num_more:
        serving.step()
    for _ in range(20):
        serving.step()


pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_rank_that_stages_late_delays_all() -> None:
    told = run_ranks(play, Plot(LateMover, NEVER), num_ranks=2)
    assert [one.epoch for one in told] == [1, 1]
    assert told[0].steps == told[1].steps
    assert told[0].steps[0] >= LATE_POLLS - 1
    assert [one.words[-1] for one in told] == ["CutOver", "CutOver"]


def test_a_rank_that_never_stages_makes_all_drop_at_the_expiry() -> None:
    told = run_ranks(play, Plot(SilentMover, 120), num_ranks=2)
    assert [one.epoch for one in told] == [0, 0]
    assert [one.steps for one in told] == [[120], [120]]
    assert [one.reasons for one in told] == [[DropReason.EXPIRED]] * 2
    assert "Staged" in told[0].words
    assert "Armed" in told[0].words, "rank 0 was armed, and still did not switch alone"


def test_a_bit_that_flips_on_the_way_makes_all_drop_and_serving_goes_on() -> None:
    told = run_ranks(play, Plot(FlippingMover, 400), num_ranks=2)
    assert [one.epoch for one in told] == [0, 0]
    assert told[0].steps == told[1].steps
    assert told[0].steps[0] < 400, "they waited for the expiry although a rank had withdrawn"
    assert told[ODD_RANK].reasons == [DropReason.DIGEST_MISMATCH]
    assert told[0].reasons == [DropReason.WITHDRAWN]
