"""A group that loaded two placements runs no step."""

from dataclasses import replace

import pytest

from eplb_service.domain.errors import AttachRefused
from eplb_service.domain.ids import Digest, Epoch, Revision
from eplb_service.domain.shares import ShareName
from eplb_service.protocol.attach import Loaded, placement_to_load, require_same

SEVEN = ShareName(Epoch(7), Digest(0x77), Revision(0), Digest(1))
EIGHT = ShareName(Epoch(8), Digest(0x88), Revision(0), Digest(2))
SETTINGS = Digest(0xABC)


def test_ranks_that_loaded_the_same_may_step() -> None:
    require_same([Loaded(SETTINGS, SEVEN)] * 3)


def test_a_group_restarting_into_two_placements_is_refused_by_name() -> None:
    loaded = [Loaded(SETTINGS, SEVEN), Loaded(SETTINGS, EIGHT), Loaded(SETTINGS, SEVEN)]
    with pytest.raises(AttachRefused) as refused:
        require_same(loaded)
    text = str(refused.value)
    assert "rank 1 has epoch 8, placement 0000000000000088" in text
    assert "most have epoch 7" in text
    assert "rank 0" not in text
    assert "no step runs" in text


@pytest.mark.parametrize(
    "odd",
    [
        Loaded(Digest(0xDEF), SEVEN),
        Loaded(SETTINGS, replace(SEVEN, epoch=Epoch(6))),
        Loaded(SETTINGS, replace(SEVEN, placement=Digest(0x78))),
        Loaded(SETTINGS, replace(SEVEN, revision=Revision(1))),
        Loaded(SETTINGS, replace(SEVEN, digest=Digest(9))),
    ],
)
def test_every_difference_is_refused(odd: Loaded) -> None:
    with pytest.raises(AttachRefused, match="rank 2 has"):
        require_same([Loaded(SETTINGS, SEVEN), Loaded(SETTINGS, SEVEN), odd])


def test_what_every_welcome_names_is_loaded() -> None:
    assert placement_to_load([SEVEN, SEVEN]) == SEVEN


@pytest.mark.parametrize("offered", [[SEVEN, EIGHT], [SEVEN, None], [None, SEVEN], [None, None]])
def test_anything_but_unanimity_loads_the_initial_placement(
    offered: list[ShareName | None],
) -> None:
    assert placement_to_load(offered) is None
