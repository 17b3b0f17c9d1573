"""Map files: what is written is read back, and a broken one says where it is broken."""

import json
from collections.abc import Sequence
from random import Random

import pytest

from eplb_service.domain.errors import EplbError, InvalidMapFile, InvalidTable, MisfitPlacement
from eplb_service.domain.map_file import format_map, parse_map, placement_of
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.rules import require_fit
from tests.planning.placements import random_placement

Device = dict[str, object]


def layer(devices: Sequence[object], layer_id: object = 0, count: object = None) -> Device:
    count = len(devices) if count is None else count
    return {"layer_id": layer_id, "device_count": count, "device_list": list(devices)}


def device(experts: object, device_id: object = 0) -> Device:
    return {"device_id": device_id, "device_expert": experts}


def document(layers: object, count: object = 1) -> str:
    return json.dumps({"moe_layer_count": count, "layer_list": layers})


def renumbered(text: str, numbers: Sequence[int], dense: Sequence[int] = ()) -> str:
    """The same file with other layer ids, and with rows for dense layers."""
    found = json.loads(text)
    for row, number in zip(found["layer_list"], numbers, strict=True):
        row["layer_id"] = number
    found["layer_list"] += [layer([device([0, 0])], number) for number in dense]
    return json.dumps({**found, "moe_layer_count": len(found["layer_list"])})


@pytest.mark.parametrize("slots", [(2, 2), (3, 1, 2), (4,), (1, 1, 1, 5)])
@pytest.mark.parametrize("model_layers", [(0, 1, 2), (1, 2, 3), (1, 3, 5), (3, 7, 8)])
def test_a_placement_comes_back_in_every_numbering_of_its_layers(
    slots: tuple[int, ...], model_layers: tuple[int, ...]
) -> None:
    num_experts = max(slots)
    placement = random_placement(
        Random(sum(slots)), num_layers=3, num_experts=num_experts, slots_per_rank=slots
    )
    text = format_map(placement, model_layers)
    dense = [n for n in range(max(model_layers)) if n not in model_layers]
    for written in (
        text,
        renumbered(text, range(3)),
        renumbered(text, model_layers, dense),
    ):
        read = placement_of(parse_map(written), model_layers=model_layers, num_experts=num_experts)
        assert read.digest() == placement.digest()


def test_shared_experts_in_slots_come_back_and_fit_where_they_came_from() -> None:
    served: Placement = placement_from_ranks([[[0, 1, 4], [2, 3, 4]]], num_experts=4, num_shared=1)
    found = parse_map(format_map(served, (7,)))
    read = placement_of(found, model_layers=(7,), num_experts=4, num_shared=1)
    require_fit(read, served)
    assert read.digest() == served.digest()


TWO = [device([0, 1]), device([2, 3], 1)]
BROKEN: list[tuple[str, str]] = [
    ("", "line 1 column 1"),
    ("\ufeff{}", "not JSON"),
    ('{"moe_layer_count": 1, "layer_list": [', "not JSON"),
    ("[" * 100_000, "nested too deep"),
    ('{"moe_layer_count": ' + "9" * 5000 + "}", "thousands of digits"),
    ("null", "the file is NoneType"),
    (document({}), "layer_list is dict"),
    (document([layer(TWO)], count=True), "moe_layer_count holds True"),
    (document([layer(TWO)], count=1.0), "moe_layer_count holds 1.0"),
    (document([layer(TWO)], count="1"), "moe_layer_count holds '1'"),
    (document([layer(TWO)], count=None), "moe_layer_count holds None"),
    (document([layer([device([0])], count=True)]), r"layer_list\[0\].device_count holds True"),
    (document([layer(TWO, -1)]), r"layer_list\[0\].layer_id holds -1"),
    (document([layer(TWO, 0.5)]), r"layer_list\[0\].layer_id holds 0.5"),
    (document([layer(TWO, 2**31)]), r"layer_id holds 2147483648"),
    (document([layer(TWO), layer(TWO)], count=2), "layer_id 0 occurs more than once"),
    (document([layer([device([0, 1], -1)])]), r"device_list\[0\].device_id holds -1"),
    (document([layer([device([0], 1)])]), r"device ids are \[1\]; expected 0 to 0"),
    (document([layer([device([0, -2])])]), "device_expert holds -2; expected -1"),
    (document([layer([device([0, None])])]), "device_expert holds None"),
    (document([layer([device([0, float("nan")])])]), "device_expert holds nan"),
    (document([layer([device("01")])]), r"device_expert is str; expected an array"),
    (document([layer([])]), r"layer_list\[0\] has no slot"),
    (document([layer([device([]), device([], 1)])]), r"layer_list\[0\] has no slot"),
    ('{"moe_layer_count": 0, "moe_layer_count": 1, "layer_list": []}', "moe_layer_count occurs"),
    ('{"a": {"device_id": 1, "device_id": 2}}', "device_id occurs more than once"),
]


@pytest.mark.parametrize(("text", "says"), BROKEN)
def test_a_broken_file_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidMapFile, match=says) as refused:
        parse_map(text)
    assert "nothing changed" in str(refused.value)


RAGGED = [layer(TWO, 0), layer([device([0, 1, 2]), device([3], 1)], 1)]
MISFITS: list[tuple[str, type[EplbError], str]] = [
    (document([layer(TWO, 4)]), MisfitPlacement, r"layers \[4\]; expected MoE layers 0 to 1"),
    (document([layer(TWO, 0)]), MisfitPlacement, r"or the model's layers \[5, 6\]"),
    (
        document([layer(TWO, n) for n in range(3)], count=3),
        MisfitPlacement,
        r"layers \[0, 1, 2\]",
    ),
    (document(RAGGED, count=2), InvalidTable, r"layer 1 has slots per rank \[3, 1\]"),
]


@pytest.mark.parametrize(("text", "error", "says"), MISFITS)
def test_a_file_for_other_layers_or_slots_does_not_fit(
    text: str, error: type[EplbError], says: str
) -> None:
    with pytest.raises(error, match=says):
        placement_of(parse_map(text), model_layers=(5, 6), num_experts=4)
