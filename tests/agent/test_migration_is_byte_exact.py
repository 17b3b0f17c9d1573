"""Weights that ranks send each other arrive byte for byte, while every step serves right."""

import numpy as np
import pytest

from eplb_service.domain.ids import Epoch
from eplb_service.domain.moves import align
from eplb_service.domain.placement import Placement
from eplb_service.domain.plan import PlannedWave
from eplb_service.domain.shares import Ownership
from eplb_service.domain.waves import wave_content
from eplb_service.protocol.messages import CutOver
from tests.agent.scripts import Script, Spent, order_of, wave_limits, waves_between
from tests.agent.serving import Case, Serving, kinds, random_placement, served
from tests.runtime.ranks import run_ranks

GRID = (
    Case(2, 1, 2, 3),
    Case(2, 2, 3, 4),
    Case(2, 4, 8, 16),
    Case(4, 1, 2, 6),
    Case(4, 2, 2, 5),
    Case(4, 8, 8, 16),
)
NEVER = 1 << 30


def migrate(serving: Serving, script: Script, old: Placement, new: Placement) -> int:
    """Go from one placement to the next by its waves; return the waves done."""
    serving.require_content(old)
    served, waves = 0, waves_between(old, align(old, new), staging_rows=4)
    for wave in waves:
        before = [serving.layer_bytes(layer) for layer in range(serving.case.layers)]
        epoch = served + 3
        spent = Spent(wave, base_epoch=served, epoch=epoch, expires_at_step=NEVER)
        script.say(order_of(spent, rank=serving.rank, incarnation=script.incarnation))
        serving.step_until_epoch(epoch)
        serving.require_content(wave.placement)
        for layer in set(range(serving.case.layers)) - set(wave.content.layers.tolist()):
            assert serving.layer_bytes(layer) == before[layer], f"layer {layer} was not in the plan"
        served = epoch
    for _ in range(3):
        serving.step()
    return len(waves)


def migrate_cases(rank: int, cases: tuple[Case, ...]) -> list[int]:
    """Run on every rank: each case with placements of its own."""
    done: list[int] = []
    for case in cases:
        draw = np.random.default_rng([case.ranks, case.layers, case.slots, case.experts])
        old, new = (random_placement(case, draw) for _ in range(2))
        script = Script()
        with served(case, rank, old, script) as serving:
            num_waves = migrate(serving, script, old, new)
        cut_over = [word for word in script.words if isinstance(word, CutOver)]
        assert len(cut_over) == num_waves, kinds(script.words)
        done.append(num_waves)
    return done


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_every_slot_holds_its_expert_byte_for_byte_after_every_wave(num_ranks: int) -> None:
    cases = tuple(case for case in GRID if case.ranks == num_ranks)
    # The deadline of a run is meant for one case.
    done = run_ranks(migrate_cases, cases, num_ranks=num_ranks, deadline_s=60.0 * len(cases))
    assert all(waves > 0 for waves in done[0]), "nothing was moved"
    assert done.count(done[0]) == num_ranks


def serve_identical(rank: int, case: Case) -> int:
    """Run on every rank: an order that changes nothing; return the bytes' changes seen."""
    draw = np.random.default_rng(1)
    placement = random_placement(case, draw)
    assert waves_between(placement, placement, staging_rows=4) == ()
    limits = wave_limits(placement, staging_rows=4, round_rows=2)
    content = wave_content(placement, placement, limits=limits, base_epoch=Epoch(0))
    assert len(content.transfers) == 0
    script = Script()
    with served(case, rank, placement, script) as serving:
        before = [serving.layer_bytes(layer) for layer in range(case.layers)]
        wave = PlannedWave(content, placement, Ownership.OWN)
        spent = Spent(wave, base_epoch=0, epoch=1, expires_at_step=NEVER)
        script.say(order_of(spent, rank=rank, incarnation=script.incarnation))
        serving.step_until_epoch(1)
        return sum(serving.layer_bytes(layer) != before[layer] for layer in range(case.layers))


@pytest.mark.processes
@pytest.mark.slow
def test_identical_placements_move_nothing() -> None:
    assert run_ranks(serve_identical, Case(2, 2, 3, 4), num_ranks=2) == [0, 0]
