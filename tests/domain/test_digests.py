"""Fingerprints are the same everywhere and for ever, and change with anything that matters."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidOrder
from eplb_service.domain.ids import (
    NO_DIGEST,
    Digest,
    Epoch,
    Generation,
    Incarnation,
    digest_of,
)
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.shares import table_digest
from eplb_service.domain.wave import (
    Order,
    WaveContent,
    first_shares,
    received_by,
    sent_by,
    wave_digest,
)

OLD = placement_from_ranks([[[0, 1], [2, 0]]], num_experts=3)
NEW = placement_from_ranks([[[0, 1], [2, 1]]], num_experts=3)
CONTENT = WaveContent(
    base_epoch=Epoch(4),
    base=OLD.digest(),
    target=NEW.digest(),
    layers=np.array([0], dtype=np.int32),
    rows=NEW.phy2log.copy(),
    transfers=np.array([[0, 1, 1, 3]], dtype=np.int32),
    round_ends=(0, 1),
    dispatch=(Digest(11), Digest(12)),
)

GOLD_BYTES = 326039466315404894
GOLD_PLACEMENT = 1765354240706038517
GOLD_WAVE = 2080754936622956629
GOLD_TABLE = 3227965075278400464
GOLD_SHARES = 2032930007941535803


def order(**changes: int) -> Order:
    made = Order(
        epoch=Epoch(5),
        generation=Generation(2),
        incarnation=Incarnation(3),
        expires_at_step=40,
        content=CONTENT,
        dispatch=np.array([[[0], [1], [2]]], dtype=np.int32),
    )
    return replace(made, **changes)


def test_fingerprints_are_what_they_always_were() -> None:
    assert digest_of((b"ab", b"c")) == GOLD_BYTES
    assert OLD.digest() == GOLD_PLACEMENT
    assert order().digest == GOLD_WAVE
    assert table_digest(np.array([[[1]]], dtype=np.int32)) == GOLD_TABLE
    assert first_shares(Epoch(9), CONTENT).digest == GOLD_SHARES


def test_no_content_has_the_digest_that_stands_for_nothing() -> None:
    assert digest_of(()) != NO_DIGEST
    assert 0 < digest_of((b"",)) < 1 << 63


def test_boundaries_between_parts_count() -> None:
    assert len({digest_of(p) for p in ((b"ab", b"c"), (b"a", b"bc"), (b"abc",))}) == 3


def test_a_placement_has_the_same_digest_however_it_lies_in_memory() -> None:
    phy2log = np.asfortranarray(np.array([[0, 1], [1, 0]], dtype=np.int32))
    layout = SlotLayout((1, 1))
    plain = Placement(np.ascontiguousarray(phy2log), 2, layout)
    assert Placement(phy2log, 2, layout).digest() == plain.digest()


@pytest.mark.parametrize(
    "other",
    [
        placement_from_ranks([[[0, 1], [2, 1]]], num_experts=3),
        placement_from_ranks([[[0, 1, 2, 0]]], num_experts=3),
        placement_from_ranks([[[0, 1], [2, 0]]], num_experts=4),
        placement_from_ranks([[[0, 1], [2, 0]]], num_experts=3, num_shared=1),
        placement_from_ranks([[[0], [1, 2, 0]]], num_experts=3),
    ],
)
def test_a_placement_with_any_difference_has_another_digest(other: Placement) -> None:
    assert other.digest() != OLD.digest()


def test_the_generation_and_the_number_are_not_in_the_digest_of_a_wave() -> None:
    assert order(generation=7).digest == order().digest
    assert order(epoch=6).digest == order().digest


CHANGES: tuple[Callable[[WaveContent], WaveContent], ...] = (
    lambda c: replace(c, base_epoch=Epoch(3)),
    lambda c: replace(c, base=Digest(1)),
    lambda c: replace(c, target=Digest(1)),
    lambda c: replace(c, layers=np.array([1], dtype=np.int32)),
    lambda c: replace(c, rows=OLD.phy2log.copy()),
    lambda c: replace(c, transfers=np.array([[0, 1, 0, 3]], dtype=np.int32)),
    lambda c: replace(c, round_ends=(1,)),
    lambda c: replace(c, round_ends=(1, 1)),
    lambda c: replace(c, dispatch=(Digest(12), Digest(11))),
    lambda c: replace(c, dispatch=(Digest(11),)),
)


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_content_changes_the_digest_of_a_wave(
    change: Callable[[WaveContent], WaveContent],
) -> None:
    assert replace(order(), content=change(CONTENT)).digest != order().digest


@pytest.mark.parametrize("field", ["incarnation", "expires_at_step"])
def test_incarnation_and_expiry_are_in_the_digest_of_a_wave(field: str) -> None:
    assert order(**{field: 41}).digest != order().digest


def test_a_wave_applies_to_its_base_alone() -> None:
    assert CONTENT.apply(OLD).digest() == CONTENT.target
    with pytest.raises(InvalidOrder, match="the wave starts from placement"):
        CONTENT.apply(NEW)


def test_rounds_cut_the_one_canonical_list() -> None:
    assert CONTENT.num_rounds == 2
    assert CONTENT.round_transfers(1).tolist() == []
    assert CONTENT.round_transfers(2).tolist() == [[0, 1, 1, 3]]
    assert sent_by(CONTENT.transfers, OLD.layout, 0).tolist() == [[0, 1, 1, 3]]
    assert received_by(CONTENT.transfers, OLD.layout, 0).tolist() == []
    assert received_by(CONTENT.transfers, OLD.layout, 1).tolist() == [[0, 1, 1, 3]]


@pytest.mark.parametrize("ends", [(), (0,), (1, 0, 1), (2,), (-1, 1)])
def test_rounds_that_do_not_cover_the_transfers_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(InvalidOrder, match="round ends"):
        replace(CONTENT, round_ends=ends)


def test_rows_must_match_the_changed_layers() -> None:
    with pytest.raises(InvalidOrder, match="2 changed layers"):
        replace(CONTENT, layers=np.array([0, 1], dtype=np.int32))


def test_transfers_must_have_four_columns() -> None:
    with pytest.raises(InvalidOrder, match=r"expected \[M,4\]"):
        replace(CONTENT, transfers=np.zeros((1, 3), dtype=np.int32))


def test_wave_digest_is_what_every_rank_computes_from_its_own_order() -> None:
    alone = wave_digest(CONTENT, incarnation=Incarnation(3), expires_at_step=40)
    other = replace(order(), dispatch=np.array([[[0], [3], [2]]], dtype=np.int32))
    assert alone == order().digest == other.digest
