"""Reported cases of tables and map files (families F21, F23, F24, F30, F36, F43, F46)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from eplb_service.controller.planning import draft
from eplb_service.domain.errors import (
    EplbError,
    InvalidMapFile,
    InvalidPlacement,
    InvalidTable,
    MisfitPlacement,
)
from eplb_service.domain.map_file import format_map, parse_map, placement_of, reshaped
from eplb_service.domain.moves import align, transfers
from eplb_service.domain.placement import initial_placement, placement_from_ranks
from eplb_service.domain.plan import Plan
from eplb_service.domain.rules import require_fit, require_sound, violations
from tests.planning.tasks import layers_of, task_of

Ranks = Sequence[Sequence[int]]


@dataclass(frozen=True)
class TableCase:
    """A table that must be refused, with the code and all that must be named."""

    case: str
    ranks: Ranks
    num_experts: int
    error: type[EplbError]
    says: tuple[str, ...]


TABLES = (
    TableCase(
        "F23 unknown expert id",
        [[0, 1], [2, 9]],
        4,
        InvalidPlacement,
        ("unknown expert 9 in rank 1 slot 1", "expert 3 is missing"),
    ),
    TableCase(
        "F24a duplicate",
        [[0, 1, 1], [2, 3, 4]],
        5,
        InvalidPlacement,
        ("duplicate: expert 1", "rank 0"),
    ),
    TableCase(
        "F24b missing",
        [[0, 1, 2], [0, 1, 2]],
        5,
        InvalidPlacement,
        ("expert 3 is missing", "expert 4 is missing"),
    ),
    TableCase("F24 below empty", [[0, 1], [2, -2]], 3, InvalidPlacement, ("unknown expert -2",)),
)


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case.case)
def test_a_broken_table_is_refused_with_everything_that_is_wrong(case: TableCase) -> None:
    with pytest.raises(case.error) as refused:
        require_sound(layers_of(case.ranks, num_experts=case.num_experts))
    assert all(words in str(refused.value) for words in case.says)


def test_f24c_a_ragged_table_is_refused() -> None:
    with pytest.raises(InvalidTable, match="ragged"):
        layers_of([[0, 1, 2], [3, 4, 2]], [[0, 1, 2], [3, 4]], num_experts=5)
    unequal = layers_of([[0, 1, 2], [3, 4]], num_experts=5)
    with pytest.raises(MisfitPlacement, match=r"\[3, 2\], expected \[3, 3\]"):
        require_fit(unequal, layers_of([[0, 1, 2], [3, 4, 2]], num_experts=5))


def test_f21_transfers_are_worked_out_from_the_actual_map() -> None:
    actual = layers_of([[0, 1], [2, 3]], num_experts=4)
    wanted = align(actual, layers_of([[3, 1], [2, 0]], num_experts=4))
    assert transfers(actual, wanted).tolist() == [[0, 3, 3, 0], [0, 0, 0, 3]]


def test_f36_a_cycle_goes_through_one_staging_row_per_rank() -> None:
    old, new = layers_of([[0], [1], [2]], num_experts=3), layers_of([[1], [2], [0]], num_experts=3)
    plan = draft(task_of(old, [[3, 2, 1]], new, staging=1))
    assert isinstance(plan, Plan)
    assert [wave.placement.phy2log.tolist() for wave in plan.waves] == [[[1, 2, 0]]]
    assert len(plan.waves[0].content.transfers) == 3


def test_f43_a_declared_empty_slot_is_accepted() -> None:
    assert not violations(layers_of([[0, 1, 2], [3, 4, 5], [6, 7, -1]], num_experts=8))


def map_text(rows: dict[int, Ranks]) -> str:
    layers = [
        {
            "layer_id": layer_id,
            "device_count": len(ranks),
            "device_list": [
                {"device_id": rank, "device_expert": list(experts)}
                for rank, experts in enumerate(ranks)
            ],
        }
        for layer_id, ranks in rows.items()
    ]
    return json.dumps({"moe_layer_count": len(layers), "layer_list": layers})


MODEL_LAYERS = (1, 2, 3)
"""Four hidden layers, the first dense."""
ROWS: tuple[Ranks, ...] = ([[0, 1], [2, 3]], [[1, 3], [0, 2]], [[3, 2], [1, 0]])
NUMBERINGS: dict[str, dict[int, Ranks]] = {
    "rows for all hidden layers": {0: [[0, 0], [0, 0]], 1: ROWS[0], 2: ROWS[1], 3: ROWS[2]},
    "MoE layers from 0": dict(enumerate(ROWS)),
    "the model's numbers": dict(zip(MODEL_LAYERS, ROWS, strict=True)),
    "the model's numbers, in another order": {3: ROWS[2], 1: ROWS[0], 2: ROWS[1]},
}


@pytest.mark.parametrize("numbering", NUMBERINGS)
def test_f30_all_numberings_of_layers_give_the_same_placement(numbering: str) -> None:
    found = parse_map(map_text(NUMBERINGS[numbering]))
    placement = placement_of(found, model_layers=MODEL_LAYERS, num_experts=4)
    assert placement.digest() == layers_of(*ROWS, num_experts=4).digest()


def test_f30_layers_of_another_model_are_refused() -> None:
    found = parse_map(map_text({5: ROWS[0], 6: ROWS[1]}))
    with pytest.raises(MisfitPlacement, match=r"layers \[5, 6\]"):
        placement_of(found, model_layers=MODEL_LAYERS, num_experts=4)


def test_the_upstream_fixture_is_read_and_written_alike() -> None:
    text = map_text({0: [[7, 2, 0, 3, 5], [6, 1, 4, 7, 2]]})
    placement = placement_of(parse_map(text), model_layers=(0,), num_experts=8)
    assert placement.expert_map(0).tolist() == [[2, -1, 1, 3, -1, 4, -1, 0]]
    assert placement.expert_map(1).tolist() == [[-1, 1, 4, -1, 2, -1, 0, 3]]
    written = format_map(placement, (0,))
    assert json.loads(written) == json.loads(text)
    again = placement_of(parse_map(written), model_layers=(0,), num_experts=8)
    assert again.digest() == placement.digest()


def test_f46_a_map_for_other_ranks_is_refused_and_can_be_dealt_out_anew() -> None:
    eight = placement_from_ranks(
        [[[4 * r, 4 * r + 1, 4 * r + 2, 4 * r + 3] for r in range(8)]], num_experts=32
    )
    four = initial_placement(
        num_layers=1, num_experts=32, layout=layers_of([[0] * 8] * 4, num_experts=32).layout
    )
    with pytest.raises(MisfitPlacement, match="ranks 8, expected 4"):
        require_fit(eight, four)
    shown = reshaped(eight, four.layout)
    assert len(transfers(four, shown)) == 0
    with pytest.raises(MisfitPlacement, match="32 slots, the deployment 36"):
        reshaped(eight, layers_of([[0] * 9] * 4, num_experts=32).layout)


ONE = {"device_id": 0, "device_expert": [0, 1]}
BROKEN: tuple[tuple[object, str], ...] = (
    ("{", "not JSON"),
    ([], "the file is list"),
    ({"moe_layer_count": 1}, "no layer_list"),
    ({"moe_layer_count": 2, "layer_list": []}, "moe_layer_count is 2"),
    ({"moe_layer_count": 0, "layer_list": []}, "empty"),
    ({"moe_layer_count": 1, "layer_list": [3]}, r"layer_list\[0\]"),
    (
        {"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_count": 1}]},
        r"layer_list\[0\] has no device_list",
    ),
    (
        {
            "moe_layer_count": 1,
            "layer_list": [{"layer_id": 0, "device_count": 2, "device_list": [ONE]}],
        },
        "device_count is 2",
    ),
    (
        {
            "moe_layer_count": 1,
            "layer_list": [{"layer_id": 0, "device_count": 2, "device_list": [ONE, ONE]}],
        },
        "device_id 0 occurs twice",
    ),
    (
        {
            "moe_layer_count": 1,
            "layer_list": [
                {
                    "layer_id": 0,
                    "device_count": 1,
                    "device_list": [{"device_id": 0, "device_expert": [0, "1"]}],
                }
            ],
        },
        r"layer_list\[0\].device_list\[0\].device_expert holds '1'",
    ),
)


@pytest.mark.parametrize(("content", "says"), BROKEN)
def test_a_broken_file_says_where_it_is_broken(content: object, says: str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(InvalidMapFile, match=says):
        parse_map(text)
