"""An order that must not be carried out is refused before anything moves, by a reason."""

from dataclasses import replace

import numpy as np
import pytest

from eplb_service.domain.ids import Digest, Epoch, Generation, Revision
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.shares import Ownership, ShareName, Shares, even_shares, table_digest
from eplb_service.domain.wave import Order, WaveContent
from eplb_service.protocol.messages import NackReason, NewShares
from tests.agent.fakes import INCARNATION, LIMITS, NEW, OLD, an_order
from worker_agent.agent.checks import order_fault, shares_fault

GOOD = an_order()


def content(**changes: object) -> WaveContent:
    return replace(GOOD.content, **changes)


def order(**changes: object) -> Order:
    return replace(GOOD, content=content(**changes))


def transfers(rows: list[list[int]]) -> Order:
    return order(transfers=np.array(rows, dtype=np.int32), round_ends=(len(rows),))


def ends_in(rows: list[list[list[int]]]) -> Order:
    """The good order's numbers, but another (perhaps unsound) placement."""
    after = placement_from_ranks(rows, num_experts=3)
    return order(rows=after.phy2log[GOOD.content.layers], target=after.digest())


def test_a_sound_order_has_no_fault() -> None:
    assert order_fault(GOOD, OLD, LIMITS) is None


def test_an_order_that_changes_nothing_is_sound() -> None:
    nothing = replace(
        GOOD,
        content=content(
            target=OLD.digest(),
            layers=np.zeros(0, dtype=np.int32),
            rows=np.zeros((0, 4), dtype=np.int32),
            transfers=np.zeros((0, 4), dtype=np.int32),
            round_ends=(0,),
            dispatch=tuple(table_digest(np.zeros((0, 3, 1), dtype=np.int32)) for _ in range(2)),
        ),
        dispatch=np.zeros((0, 3, 1), dtype=np.int32),
    )
    assert order_fault(nothing, OLD, LIMITS) is None


MOVES = GOOD.content.transfers.tolist()
UNSOUND = {
    "layer outside": (order(layers=np.array([7], dtype=np.int32)), "outside 0 to 1"),
    "layers twice": (
        order(
            layers=np.array([0, 0], dtype=np.int32),
            rows=np.repeat(GOOD.content.rows, 2, axis=0),
        ),
        "not ascending",
    ),
    "layers that wrap": (
        order(
            layers=np.array([0, (1 << 31) - 1, -2, 1], dtype=np.int32),
            rows=np.repeat(GOOD.content.rows, 4, axis=0),
        ),
        "not ascending",
    ),
    "row too short": (order(rows=GOOD.content.rows[:, :3].copy()), "rows have shape"),
    "slot outside": (transfers([[0, 2, 9, 1], MOVES[1]]), "slot outside 0 to 3"),
    "layer of a transfer": (transfers([[1, 2, 2, 1], MOVES[1]]), "layer that does not change"),
    "a move is missing": (transfers(MOVES[:1]), "missing"),
    "a move is needless": (transfers([*MOVES, [0, 0, 0, 3]]), "needless"),
    "a move comes twice": (transfers([*MOVES, MOVES[0]]), "3 transfers into 2 slots"),
    "source without the expert": (transfers([[0, 2, 3, 1], MOVES[1]]), "but it holds 0"),
    "another expert sent": (transfers([[0, 0, 0, 1], MOVES[1]]), "would hold expert 2"),
    "another end": (order(target=Digest(1)), "rows end in placement"),
    "an expert is lost": (ends_in([[[0, 2], [2, 0]], [[0, 1], [2, -1]]]), "expert 1 is missing"),
    "twice on a rank": (ends_in([[[0, 0], [1, 2]], [[0, 1], [2, -1]]]), "duplicate"),
    "unknown expert": (ends_in([[[0, 9], [1, 2]], [[0, 1], [2, -1]]]), "unknown expert 9"),
    "dispatch too wide": (
        replace(GOOD, dispatch=np.repeat(GOOD.dispatch, 2, axis=2)),
        "dispatch rows have shape",
    ),
    "dispatch of another rank": (
        replace(
            GOOD,
            dispatch=even_shares(NEW, Ownership.OWN).table_of(1)[GOOD.content.layers],
        ),
        "have fingerprint",
    ),
    "too few fingerprints": (
        order(dispatch=GOOD.content.dispatch[:1]),
        "1 fingerprints of dispatch rows; expected 2",
    ),
}


@pytest.mark.parametrize(("bad", "text"), UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_order_is_refused_with_what_is_wrong(bad: Order, text: str) -> None:
    fault = order_fault(bad, OLD, LIMITS)
    assert fault is not None
    assert fault[0] is NackReason.UNSOUND
    assert text in fault[1]


def test_what_is_wrong_with_a_giant_order_is_told_in_few_words() -> None:
    """A refusal larger than the street would break it, and the order come again on the next."""
    num_layers = 100_000
    giant = order(
        layers=np.zeros(num_layers, dtype=np.int32),
        rows=np.zeros((num_layers, 4), dtype=np.int32),
    )
    fault = order_fault(giant, OLD, LIMITS)
    assert fault is not None
    assert len(fault[1]) < 1000
    assert "not ascending" in fault[1]


def test_a_dispatch_row_that_names_another_experts_slot_is_refused() -> None:
    rows = GOOD.dispatch.copy()
    rows[0, 1, 0] = 0
    bad = replace(
        GOOD,
        content=content(dispatch=(table_digest(rows), GOOD.content.dispatch[1])),
        dispatch=rows,
    )
    fault = order_fault(bad, OLD, LIMITS)
    assert fault == (
        NackReason.UNSOUND,
        "layer 0: row 0 of expert 1 names slot 0, which does not hold it; nothing was changed",
    )


def test_an_order_on_another_base_is_refused_as_such() -> None:
    fault = order_fault(GOOD, NEW, LIMITS)
    assert fault is not None
    assert fault[0] is NackReason.WRONG_BASE


def test_an_order_larger_than_the_staging_memory_is_refused_for_room() -> None:
    tight = replace(LIMITS, profile=replace(LIMITS.profile, staging_rows=0))
    fault = order_fault(GOOD, OLD, tight)
    assert fault is not None
    assert fault[0] is NackReason.NO_ROOM
    assert "receive 1 experts, but its staging memory holds 0" in fault[1]


def test_a_pinned_shared_expert_may_not_move() -> None:
    rows_old, rows_new = [[[0, 3], [1, 2]]], [[[0, 2], [1, 3]]]
    old = placement_from_ranks(rows_old, num_experts=3, num_shared=1)
    new = placement_from_ranks(rows_new, num_experts=3, num_shared=1)
    fault = order_fault(an_order(new, old=old), old, LIMITS)
    assert fault is not None
    assert "shared experts are pinned" in fault[1]


def revision(table: Shares, placement: Placement, digest: Digest) -> NewShares:
    name = ShareName(Epoch(0), placement.digest(), Revision(1), Digest(7))
    return NewShares(Generation(1), INCARNATION, name, digest, table)


def test_shares_are_used_only_if_every_slot_they_name_holds_the_expert() -> None:
    table = even_shares(OLD, Ownership.OWN).table_of(0)
    own = Shares(table[None].copy(), Ownership.OWN)
    assert shares_fault(revision(own, OLD, table_digest(table)), OLD, LIMITS) is None
    wrong = table.copy()
    wrong[0, 2, 0] = 0
    bad = Shares(wrong[None].copy(), Ownership.OWN)
    fault = shares_fault(revision(bad, OLD, table_digest(wrong)), OLD, LIMITS)
    assert fault == "layer 0: row 0 of expert 2 names slot 0, which does not hold it"
    profile = replace(LIMITS.profile, sets_shares=False)
    fault = shares_fault(
        revision(own, OLD, table_digest(table)), OLD, replace(LIMITS, profile=profile)
    )
    assert fault == "this rank said that it takes no shares; its tables stay with its placement"
    fault = shares_fault(revision(own, OLD, Digest(1)), OLD, LIMITS)
    assert fault is not None
    assert "digest" in fault
