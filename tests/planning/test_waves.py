"""Waves fit every rank's staging memory, and what stands after each of them is sound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.errors import MisfitPlacement
from eplb_service.domain.ids import Epoch
from eplb_service.domain.moves import align
from eplb_service.domain.parts import receives
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.plan import PlannedWave
from eplb_service.domain.rules import violations
from eplb_service.domain.shares import Ownership, table_digest
from eplb_service.domain.waves import LATER, WaveLimits, split
from tests.planning.placements import pairs

EPOCH = Epoch(7)


def limits(
    placement: Placement,
    *rows: int,
    round_bytes: int = 100,
    ownership: Ownership = Ownership.OWN,
) -> WaveLimits:
    staging = rows * placement.layout.num_ranks if len(rows) == 1 else rows
    return WaveLimits(staging, round_bytes, bytes_per_expert=10, ownership=ownership)


def run_through(old: Placement, waves: tuple[PlannedWave, ...], bounds: WaveLimits) -> Placement:
    """Apply waves one by one, each from staged copies of its base, and check what each promises."""
    held = old
    for wave in waves:
        content = wave.content
        after = content.apply(held)
        rows = zip(held.phy2log, after.phy2log, strict=True)
        needed = np.sum([receives(before, row, old.layout) for before, row in rows], axis=0)
        assert (needed <= np.array(bounds.staging_rows)).all()
        assert not violations(after)
        gained = (held.phy2log != after.phy2log) & (after.phy2log >= 0)
        assert {(n, e, t) for n, e, _, t in content.transfers.tolist()} == {
            (n, int(after.phy2log[n, t]), t) for n, t in np.argwhere(gained).tolist()
        }
        for layer, expert, source, _ in content.transfers.tolist():
            assert held.phy2log[layer, source] == expert
        assert content.target == after.digest() == wave.placement.digest()
        assert content.dispatch == tuple(
            table_digest(table[content.layers]) for table in wave.shares.tables
        )
        held = after
    return held


@given(pairs(), st.integers(2, 6), st.sampled_from(Ownership))
def test_waves_lead_from_any_placement_to_any_other(
    pair: tuple[Placement, Placement], rows: int, ownership: Ownership
) -> None:
    old, new = pair
    bounds = limits(old, rows, ownership=ownership)
    waves = split(old, new, limits=bounds, base_epoch=EPOCH)
    assert (run_through(old, waves, bounds).phy2log == new.phy2log).all()


@given(pairs())
def test_one_staging_row_is_enough_for_aligned_placements(
    pair: tuple[Placement, Placement],
) -> None:
    old, new = pair[0], align(*pair)
    bounds = limits(old, 1)
    waves = split(old, new, limits=bounds, base_epoch=EPOCH)
    assert (run_through(old, waves, bounds).phy2log == new.phy2log).all()


@given(pairs())
def test_equal_placements_need_no_wave(pair: tuple[Placement, Placement]) -> None:
    old, _ = pair
    assert split(old, old, limits=limits(old, 1), base_epoch=EPOCH) == ()


@given(pairs())
def test_layers_go_whole_where_they_fit(pair: tuple[Placement, Placement]) -> None:
    old, new = pair
    waves = split(old, new, limits=limits(old, 5), base_epoch=EPOCH)
    seen = [layer for wave in waves for layer in wave.content.layers.tolist()]
    assert len(seen) == len(set(seen))


def swapped(num_layers: int) -> tuple[Placement, Placement]:
    old = placement_from_ranks([[[0, 1], [2, 3]]] * num_layers, num_experts=4)
    new = placement_from_ranks([[[3, 1], [2, 0]]] * num_layers, num_experts=4)
    return old, new


def test_several_layers_share_a_wave_and_the_named_ones_come_first() -> None:
    old, new = swapped(3)
    waves = split(old, new, limits=limits(old, 2), base_epoch=EPOCH, layer_order=[2])
    assert [wave.content.layers.tolist() for wave in waves] == [[0, 2], [1]]


def test_only_the_first_wave_knows_its_base_epoch() -> None:
    old, new = swapped(2)
    first, second = split(old, new, limits=limits(old, 1), base_epoch=EPOCH)
    assert (first.content.base_epoch, second.content.base_epoch) == (EPOCH, LATER)
    known = replace(second.content, base_epoch=Epoch(8))
    assert (known.base, known.target) == (second.content.base, second.content.target)


def test_a_cycle_over_three_ranks_with_one_staging_row_each_is_one_wave() -> None:
    old = placement_from_ranks([[[0], [1], [2]]], num_experts=3)
    new = placement_from_ranks([[[1], [2], [0]]], num_experts=3)
    bounds = limits(old, 1)
    waves = split(old, new, limits=bounds, base_epoch=EPOCH)
    assert len(waves) == 1
    assert (run_through(old, waves, bounds).phy2log == new.phy2log).all()


def test_a_rank_without_staging_memory_cannot_receive() -> None:
    old, new = swapped(1)
    with pytest.raises(MisfitPlacement, match="staging memory of \\[1, 0\\]"):
        split(old, new, limits=limits(old, 1, 0), base_epoch=EPOCH)


def test_rounds_bound_the_bytes_of_every_rank() -> None:
    ten = list(range(10))
    old = placement_from_ranks([[ten, [-1] * 10]], num_experts=10)
    new = placement_from_ranks([[ten, ten]], num_experts=10)
    [wave] = split(old, new, limits=limits(old, 10, round_bytes=45), base_epoch=EPOCH)
    assert wave.content.round_ends == (4, 8, 10)


def test_a_round_takes_one_expert_however_large() -> None:
    old, new = swapped(1)
    [wave] = split(old, new, limits=limits(old, 2, round_bytes=1), base_epoch=EPOCH)
    assert wave.content.round_ends == (2,)
