"""Small layers whose lowest peak and fewest moves a solver proved (benchmarks/placement/proofs)."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.placement import proofs
from eplb_service.domain.moves import num_moves
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.rules import violations
from eplb_service.policies.catalog import policy_named
from eplb_service.policies.request import PolicyRequest, even_split, predicted_load

OPTIMA = Path(proofs.__file__).parent / "optima.json"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer and what was proved of it."""

    heat: list[int]
    ranks: list[list[int]]
    peak_times_12: int
    moves_to_peak: int
    moves_to_half_a_percent: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """Of each layer the peak over the proved one, and the moves beyond the proved ones."""

    peaks: list[float]
    beyond_peak: list[int]
    beyond_half_a_percent: list[int]


@cache
def layers() -> list[Layer]:
    return [Layer(**layer) for layer in json.loads(OPTIMA.read_text())]


@cache
def drawn(policy: str) -> Drawn:
    found = Drawn([], [], [])
    for layer in layers():
        held = placement_from_ranks([layer.ranks], num_experts=len(layer.heat))
        even = even_split(len(layer.ranks))
        heat = np.array([layer.heat], dtype=np.float64)
        after = policy_named(policy).draw(PolicyRequest(heat, held, even, (0,)))
        assert not violations(after)
        moves = num_moves(held, after)
        peak = predicted_load(heat, after, even).max()
        found.peaks.append(float(12 * peak / layer.peak_times_12))
        found.beyond_peak.append(moves - layer.moves_to_peak)
        found.beyond_half_a_percent.append(moves - layer.moves_to_half_a_percent)
    return found


def test_there_are_two_hundred_small_layers_and_no_two_alike() -> None:
    assert len({json.dumps([layer.heat, layer.ranks]) for layer in layers()}) == 200
    assert all(len(layer.heat) <= 8 and len(layer.ranks) <= 4 for layer in layers())
    assert sum(layer.moves_to_peak > 2 for layer in layers()) > 50


@pytest.mark.parametrize("policy", ["incremental", "packing"])
def test_peaks_are_near_the_lowest_that_there_are(policy: str) -> None:
    peaks = drawn(policy).peaks
    assert min(peaks) >= 1 - 1e-9
    assert np.mean(peaks) <= 1.005
    assert max(peaks) <= 1.02


def test_moves_are_near_the_fewest_that_lead_there() -> None:
    found = drawn("incremental")
    assert np.mean(found.beyond_peak) <= 1.5
    assert np.mean(found.beyond_half_a_percent) <= 1.5
