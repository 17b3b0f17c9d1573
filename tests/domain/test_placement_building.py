"""A placement is built from what can be one, or refused where it is wrong."""

from typing import cast

import pytest

from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import initial_placement, placement_from_ranks


@pytest.mark.parametrize(
    ("num_experts", "slots", "says"),
    [
        (0, (1,), "0 experts"),
        (9, (4, 4), "9 experts do not fit into 8 slots"),
        (3, (4, 2), "4 slots on one rank, but only 3 experts"),
    ],
)
def test_experts_that_cannot_be_laid_out_flat_are_refused(
    num_experts: int, slots: tuple[int, ...], says: str
) -> None:
    with pytest.raises(InvalidSettings, match=says):
        initial_placement(num_layers=1, num_experts=num_experts, layout=SlotLayout(slots))


@pytest.mark.parametrize("expert", [2**31, -(2**31) - 1, 2**70, 1.5, float("nan"), "1"])
def test_an_id_that_is_no_id_is_refused_and_not_cut_to_size(expert: object) -> None:
    with pytest.raises(InvalidTable, match="layer 0: rank 1 holds"):
        placement_from_ranks([[[0, 1], [2, cast("int", expert)]]], num_experts=4)
