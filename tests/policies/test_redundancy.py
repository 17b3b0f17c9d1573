"""What further slots buy on recorded load, with the graph that they make possible."""

from math import isnan

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.ids import FloatArray
from eplb_service.policies.redundancy import advise, suggested


def recorded(num_windows: int) -> list[FloatArray]:
    rng = np.random.default_rng(4)
    log = rng.normal(0, 0.7, (3, 32))
    return [np.exp(log + 0.2 * rng.standard_normal(log.shape)) * 1e4 for _ in range(num_windows)]


def test_the_slot_that_joins_the_last_ranks_is_what_pays() -> None:
    none, few, enough, more = advise(recorded(4), 8, [32, 36, 39, 48])
    assert [row.can_connect for row in (none, few, enough, more)] == [False, False, True, True]
    assert none.components == 8
    assert 4 <= few.components < 8
    assert enough.components == more.components == 1
    assert none.later > few.later > 1.04 > enough.later >= more.later >= 1
    assert enough.gain_per_slot > 5 * more.gain_per_slot >= 0
    assert isnan(none.gain_per_slot)
    assert all(row.even >= row.later and row.worst >= row.later for row in (enough, more))


def test_one_hand_checked_window() -> None:
    """One of two experts has all tokens: a spare slot lets both ranks share them."""
    window = np.array([[10.0, 0.0]])
    alone, shared = advise([window], 2, [2, 3])
    assert (alone.even, alone.shares, alone.later) == (2.0, 2.0, 2.0)
    assert (shared.even, shared.shares, shared.later) == (1.0, 1.0, 1.0)
    assert shared.gain_per_slot == 1.0


def test_layers_without_load_say_nothing_and_numbers_that_make_no_sense_are_refused() -> None:
    silent = advise([np.array([[10.0, 0.0], [0.0, 0.0]])], 2, [3])[0]
    assert silent.later == 1.0
    nothing = advise([np.zeros((1, 2))], 2, [3])[0]
    assert isnan(nothing.later)
    assert isnan(nothing.worst)
    with pytest.raises(InvalidSettings, match="1 slots for 2 experts on 2 ranks; expected 2 to 4"):
        advise([np.ones((1, 2))], 2, [1])
    with pytest.raises(InvalidSettings, match="rising numbers"):
        advise([np.ones((1, 2))], 2, [4, 3])
    with pytest.raises(InvalidTable, match="expected a finite"):
        advise([np.full((1, 2), np.nan)], 2, [3])
    with pytest.raises(InvalidTable, match="heat has shape"):
        advise([np.ones((1, 2)), np.ones((1, 3))], 2, [3])


def test_what_is_worth_a_look_ends_where_every_rank_holds_everything() -> None:
    assert suggested(256, 32, 2) == [256, 287, 288, 320]
    assert suggested(2, 3, 4) == [2, 4, 5]
