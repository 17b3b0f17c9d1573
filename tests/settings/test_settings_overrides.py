"""Operators change gates and budgets by dotted name; all of what they ask for, or none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidSettings
from eplb_service.settings import Settings, SettingsTuner, merge_overrides


def refusal(text: str) -> str:
    with pytest.raises(InvalidSettings) as refused:
        Settings().with_overrides(text)
    return str(refused.value)


def test_only_gates_budgets_shares_and_the_policy_can_be_changed() -> None:
    names = dict(Settings().overridable())
    assert names["budget.max_moves"] == "512"
    assert names.pop("planning.policy") == '"incremental"'
    assert {name.partition(".")[0] for name in names} <= {"budget", "gates", "shares"}


def test_another_policy_is_planned_by_and_an_unknown_one_refused() -> None:
    tuner = SettingsTuner(Settings())
    assert tuner.tuning('{"planning.policy": "packing"}').planning.policy == "packing"
    assert "packing" in refusal('{"planning.policy": "pack"}')


def test_overrides_are_taken_and_seen() -> None:
    got = Settings().with_overrides('{"budget.max_moves": 96}')
    assert got.budget.max_moves == 96
    assert got.overridable()["budget.max_moves"] == "96"
    assert got.budget.max_bytes == Settings().budget.max_bytes


def test_no_override_is_no_change() -> None:
    assert Settings().with_overrides("{}") == Settings()


def test_what_is_shown_can_be_set() -> None:
    shown = {name: json.loads(value) for name, value in Settings().overridable().items()}
    assert Settings().with_overrides(json.dumps(shown)) == Settings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"budget.max_move": 1}', "did you mean budget.max_moves"),
        ('{"server.port": 1}', "server.port is not a setting that operators may change"),
        ('{"budget": {"max_moves": 1}}', "budget is not a setting that operators may change"),
        ('{"budget.max_moves": 0}', "budget.max_moves = 0: input should be greater than 0"),
        ('{"budget.max_moves": "many"}', "budget.max_moves = 'many'"),
        ("[1]", "one JSON object"),
        ("{", "one JSON object"),
    ],
)
def test_a_wrong_override_is_named_and_changes_nothing(text: str, says: str) -> None:
    answer = refusal(text)
    assert says in answer
    assert "nothing was changed" in answer


def test_everything_wrong_is_told_at_once() -> None:
    answer = refusal('{"budget.max_moves": 0, "budget.max_bytes": -1}')
    assert "budget.max_moves" in answer
    assert "budget.max_bytes" in answer


def test_new_values_go_on_top_of_those_before_and_null_takes_one_back() -> None:
    before = merge_overrides("{}", {"budget.max_moves": "96", "budget.round_bytes": "1024"})
    after = merge_overrides(before, {"budget.max_moves": "null", "budget.round_bytes": "2048"})
    assert json.loads(after) == {"budget.round_bytes": 2048}


@pytest.mark.parametrize("value", ["", "many", "1, 2", '1}, {"x": 2', '"open'])
def test_a_value_that_is_not_json_is_refused_with_an_example(value: str) -> None:
    with pytest.raises(InvalidSettings, match="is not a JSON value"):
        merge_overrides("{}", {"budget.max_moves": value})


@given(moves=st.integers(1, 10**9))
def test_any_sound_budget_survives_the_way_through_json(moves: int) -> None:
    text = merge_overrides("{}", {"budget.max_moves": str(moves)})
    assert Settings().with_overrides(text).budget.max_moves == moves
