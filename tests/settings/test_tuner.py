"""The controller gets what the settings and the operator's overrides say, and nothing else."""

import dataclasses
import json

import pytest
from pydantic import ValidationError

from eplb_service.controller.tuning import Tuner
from eplb_service.domain.errors import InvalidSettings
from eplb_service.gates.settings import GateSettings as GateThresholds
from eplb_service.load.group import WindowTerms
from eplb_service.policies.terms import Terms
from eplb_service.settings import GateSettings, Settings, SettingsTuner, ShareSettings
from eplb_service.settings.tuner import MOST_KNOWN


@pytest.fixture
def tuner() -> Tuner:
    return SettingsTuner(Settings())


def test_the_gates_own_every_default_and_every_name() -> None:
    assert set(GateSettings.model_fields) == {f.name for f in dataclasses.fields(GateThresholds)}
    assert GateThresholds(**GateSettings().model_dump()) == GateThresholds()


def test_without_overrides_the_rooms_get_their_own_defaults(tuner: Tuner) -> None:
    tuning = tuner.tuning("{}")
    assert tuning.gates == GateThresholds()
    assert tuning.windows == WindowTerms()
    assert tuning.cadence.report_every_steps == tuning.windows.report_steps


def test_an_override_reaches_the_tuning_and_is_shown(tuner: Tuner) -> None:
    overrides = tuner.merged("{}", {"gates.min_gain": "0.2", "budget.max_moves": "96"})
    tuning = tuner.tuning(overrides)
    assert (tuning.gates.min_gain, tuning.planning.budget.max_moves) == (0.2, 96)
    assert tuner.shown(overrides)["gates.min_gain"] == "0.2"
    assert tuner.shown("{}")["gates.min_gain"] != "0.2"


def test_a_tuning_is_made_once_and_few_are_kept(tuner: Tuner) -> None:
    first = tuner.tuning("{}")
    assert tuner.tuning("{}") is first
    for number in range(MOST_KNOWN):
        tuner.tuning(f'{{"budget.max_moves": {number + 1}}}')
    assert tuner.tuning("{}") == first
    with pytest.raises(InvalidSettings):
        tuner.tuning('{"budget.max_moves": 0}')


def test_a_wrong_value_leaves_the_overrides_before_as_they_were(tuner: Tuner) -> None:
    with pytest.raises(InvalidSettings, match=r"gates\.min_gain = 2"):
        tuner.merged('{"budget.max_moves": 96}', {"gates.min_gain": "2"})
    with pytest.raises(InvalidSettings, match=r"did you mean gates\.min_gain"):
        tuner.merged("{}", {"gates.min_gains": "0.1", "budget.max_moves": "9"})


def test_null_takes_an_override_back(tuner: Tuner) -> None:
    before = tuner.merged("{}", {"budget.max_moves": "96"})
    assert json.loads(tuner.merged(before, {"budget.max_moves": "null"})) == {}


def test_everything_that_can_be_changed_is_shown(tuner: Tuner) -> None:
    sections = {name.partition(".")[0] for name in tuner.shown("{}")}
    assert sections == {"budget", "gates", "planning", "shares"}
    num_listed = len(GateSettings.model_fields) + len(ShareSettings.model_fields) + 7
    assert len(tuner.shown("{}")) == num_listed


def test_speeds_count_where_there_are_as_many_ranks_and_costs_by_the_step() -> None:
    given = {"rank_speeds": (1.0, 2.0), "expert_cost": 8}
    planning = SettingsTuner(Settings.model_validate({"planning": given})).tuning("{}").planning
    assert planning.costs.terms(num_ranks=2, num_steps=10) == Terms(fixed=80.0, speeds=(1.0, 2.0))
    assert planning.costs.terms(num_ranks=3, num_steps=10) == Terms(fixed=80.0)
    with pytest.raises(ValidationError, match="rank_speeds"):
        Settings.model_validate({"planning": {"rank_speeds": (1.0, 0.0)}})
