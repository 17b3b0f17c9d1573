"""Each verb asks the controller for what it says, and shows what comes back."""

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from eplb_service.controller.desk import ActRequest, MapRequest, PlanRequest
from eplb_service.controller.views import NothingView
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.plan import Answer, Finding, Verdict
from tests.cli.conftest import Ctl
from tests.server import views
from tests.server.desks import Operators

NOTHING = NothingView("m/i/serve/0/g", "balanced", "the mean is 1.02")


def act_of(operators: Operators) -> ActRequest:
    """The act that the last verb carried."""
    [act] = [part for part in operators.asked[-1] if isinstance(part, ActRequest)]
    return act


def test_status_shows_every_deployment(ctl: Ctl, operators: Operators) -> None:
    ran = ctl("status")
    assert (ran.code, ran.err) == (0, "")
    assert "deployment   m/i/serve/0/g   epoch 41.2" in ran.out
    assert "deployment   m/i/draft/0/g   epoch 1" in ran.out
    assert operators.asked == [("status", "")]


def test_options_may_stand_before_the_verb_or_after_it(ctl: Ctl, operators: Operators) -> None:
    before = ctl("-o", "json", "--deployment", "a", "status")
    after = ctl("status", "--deployment", "a", "-o", "json")
    assert before == after
    assert operators.asked == [("status", "a")] * 2


def test_json_has_the_keys_of_the_views_and_null_for_no_data(ctl: Ctl) -> None:
    busy, quiet = json.loads(ctl("status", "-o", "json").out)
    assert list(busy) == [
        "deployment",
        "epoch",
        "revision",
        "generation",
        "settled_age_s",
        "ranks",
        "window",
        "imbalance",
        "operation",
        "shares",
    ]
    assert busy["ranks"][1]["report_age_s"] is None
    assert busy["operation"]["running"]["num_waves"] == 3
    assert quiet["imbalance"] == {"mean": None, "worst": None, "worst_layer": -1}


def test_yaml_says_what_json_says(ctl: Ctl) -> None:
    as_json, as_yaml = ctl("heat", "-o", "json").out, ctl("heat", "-o", "yaml").out
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_heat_is_asked_for_layers(ctl: Ctl, operators: Operators) -> None:
    assert ctl("heat", "--layer", "0,2-4,2").code == 0
    assert operators.asked == [("heat", "", (0, 2, 3, 4))]


def test_a_plan_changes_nothing_and_says_so(ctl: Ctl, operators: Operators) -> None:
    ran = ctl("plan", "--policy", "packing", "--layers", "0-1", "--reason", "peak")
    assert ran.code == 0
    assert ran.out.startswith("plan 7f3a   epoch 41 to 42   policy packing")
    assert ran.out.endswith("\nNothing was changed. To carry it out: eplbctl apply 7f3a\n")
    ((verb, spec),) = operators.asked
    assert isinstance(spec, PlanRequest)
    assert (verb, replace(spec, who="")) == ("plan", PlanRequest("", "packing", (0, 1), "peak", ""))
    assert "@" in spec.who


def test_the_exit_code_of_a_plan_says_whether_it_would_change_something(
    ctl: Ctl, operators: Operators
) -> None:
    assert ctl("plan", "--exit-code").code == 10
    operators.answer = NOTHING
    ran = ctl("plan", "--exit-code")
    assert (ran.code, ran.out) == (
        0,
        "nothing to do: balanced: the mean is 1.02\n\nNothing was changed.\n",
    )


def test_machines_find_plan_and_nothing_under_fixed_keys(ctl: Ctl, operators: Operators) -> None:
    there = json.loads(ctl("plan", "-o", "json").out)
    operators.answer = NOTHING
    absent = json.loads(ctl("plan", "-o", "json").out)
    assert list(there) == list(absent) == ["plan", "nothing"]
    assert there["plan"]["plan"]["price"]["payback_steps"] is None
    assert absent["nothing"]["reason"] == "balanced"


def test_explain_and_history(ctl: Ctl, operators: Operators) -> None:
    assert "move_budget   throttle   only the first wave" in ctl("explain", "7f3a").out
    assert "settled at step 900" in ctl("history", "--limit", "5").out
    assert operators.asked == [("explain", "", "7f3a"), ("history", "", 5)]


def test_every_act_says_who_why_and_a_fresh_id(ctl: Ctl, operators: Operators) -> None:
    ids: set[str] = set()
    for _ in range(2):
        assert ctl("apply", "7f3a", "--reason", "it is time").code == 0
        act = act_of(operators)
        assert (act.deployment, act.reason) == ("", "it is time")
        assert "@" in act.who
        ids.add(str(uuid.UUID(act.request_id)))
    assert len(ids) == 2


def test_the_same_id_can_be_given_again(ctl: Ctl, operators: Operators) -> None:
    ctl("rebalance", "--request-id", "nightly-7", "--layers", "3", "--reason", "peak")
    _, act, spec = operators.asked[-1]
    assert act_of(operators).request_id == "nightly-7"
    assert spec == PlanRequest("", "", (3,), "peak", act_of(operators).who)
    assert act == act_of(operators)


def test_rebalance_waits_until_the_plan_is_over(
    ctl: Ctl, operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eplb_service.cli.acts.POLL_S", 0.01)
    phases = iter(["running", "running", "done"])
    run = views.a_run()

    async def runs(deployment: str, plan_id: str) -> object:
        operators.asked.append(("run", deployment, plan_id))
        return replace(run, phase=next(phases), text="")

    monkeypatch.setattr(operators, "run", runs)
    ran = ctl("rebalance", "--wait")
    assert (ran.code, ran.err) == (0, "")
    assert "plan 7f3a   done   epoch 42" in ran.out
    assert operators.asked.count(("run", "", "7f3a")) == 3


def test_a_plan_that_stops_short_is_a_failure_of_a_command_that_waits(
    ctl: Ctl, operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopped(deployment: str, plan_id: str) -> object:
        del deployment, plan_id
        return replace(views.a_run(), phase="stopped", text="rank 3 dropped it")

    monkeypatch.setattr(operators, "run", stopped)
    ran = ctl("rebalance", "--wait", "-o", "json")
    assert ran.code == 1
    assert ran.err == "failed: plan 7f3a is stopped: rank 3 dropped it; what stands is valid\n"
    assert json.loads(ran.out)["run"]["phase"] == "stopped"


def test_waiting_ends_at_the_deadline(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eplb_service.cli.acts.POLL_S", 0.02)
    ran = ctl("apply", "7f3a", "--wait", "--timeout", "2s")
    assert ran.code == 5
    assert "plan 7f3a is not over after 2.0s; it goes on" in ran.err


def test_a_plan_that_was_judged_no_is_refused_by_name(ctl: Ctl, operators: Operators) -> None:
    no = Verdict(Answer.NO, 0, (Finding("move_budget", Answer.NO, "248 of 96"),))
    operators.answer = replace(views.a_plan(), verdict=no, phase="rejected")
    ran = ctl("rebalance", "--wait")
    assert ran.code == 1
    assert ran.err == "refused: plan 7f3a was judged no by move_budget; nothing was changed\n"
    assert ctl("plan", "--exit-code").code == 0


def test_rollback_freeze_and_unfreeze(ctl: Ctl, operators: Operators) -> None:
    assert ctl("rollback").code == 0
    assert ctl("rollback", "--to", "38").code == 0
    assert ctl("freeze", "--for", "1h30m", "--reason", "audit").code == 0
    assert ctl("unfreeze").code == 0
    assert [asked[2] for asked in operators.asked] == [None, 38, 5400.0, 0.0]


def test_drain_and_undrain_name_a_rank(ctl: Ctl, operators: Operators) -> None:
    assert ctl("drain", "5", "--reason", "swap the NPU").code == 0
    assert ctl("undrain", "5").code == 0
    assert ctl("drain", "-1").code == 2
    assert [(asked[0], asked[2]) for asked in operators.asked] == [("drain", 5), ("undrain", 5)]


def test_abort_is_no_failure_where_the_plan_stops(ctl: Ctl, operators: Operators) -> None:
    ran = ctl("abort", "7f3a")
    assert (ran.code, ran.err) == (0, "")
    assert operators.asked[-1][2] == "7f3a"


def test_resume_names_the_halt_that_stands(ctl: Ctl, operators: Operators) -> None:
    assert ctl("resume", "2").code == 0
    ran = ctl("resume")
    assert ran.code == 2
    assert "known: m/i/serve/0/g, m/i/draft/0/g" in ran.err
    assert [asked[0] for asked in operators.asked] == ["resume", "status"]


def test_resume_without_a_halt_has_nothing_to_do(
    ctl: Ctl, operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def quiet(deployment: str) -> object:
        del deployment
        return (views.a_quiet_status(),)

    monkeypatch.setattr(operators, "status", quiet)
    ran = ctl("resume")
    assert (ran.code, ran.out) == (0, "nothing to do: no halt stands at m/i/draft/0/g\n")
    assert operators.asked == []


def test_settings_are_shown_and_changed_by_name(ctl: Ctl, operators: Operators) -> None:
    assert json.loads(ctl("config", "get", "-o", "json").out) == {"gates.min_gain": 0.05}
    ran = ctl("config", "set", "gates.min_gain=0.1", "gates.mode=gentle")
    assert ran.code == 0
    assert operators.asked[-1][2] == {"gates.min_gain": "0.1", "gates.mode": '"gentle"'}
    assert 'gates.mode       "gentle"' in ran.out


def test_a_setting_that_does_not_exist_is_named(ctl: Ctl) -> None:
    ran = ctl("config", "get", "gates.min_gian")
    assert ran.code == 2
    assert "gates.min_gian: no such setting" in ran.err


def test_a_setting_named_twice_changes_nothing(ctl: Ctl, operators: Operators) -> None:
    ran = ctl("config", "set", "a.b=1", "a.b=2")
    assert ran.code == 2
    assert operators.asked == []


def test_export_prints_or_writes_a_whole_file(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    file = tmp_path / "map.json"
    file.write_text("old")
    assert json.loads(ctl("export", "--epoch", "38").out) == {"moe_layer_count": 0}
    assert ctl("export", str(file)).out == f"written to {file}\n"
    assert json.loads(file.read_text()) == {"moe_layer_count": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["map.json"]
    assert [asked[2] for asked in operators.asked] == [38, 0]


def test_an_export_that_cannot_be_written_leaves_what_was_there(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "map.json").mkdir()
    ran = ctl("export", str(tmp_path / "map.json"))
    assert ran.code == 1
    assert "cannot be written" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["map.json"]


def test_import_sends_the_text_of_the_file(ctl: Ctl, operators: Operators, tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    text = format_map(placement_from_ranks([[[0], [1]]], num_experts=2), (3,)).replace("    ", " ")
    file.write_text(text)
    assert ctl("import", str(file), "--reshape").code == 0
    assert operators.asked[-1][2:] == (MapRequest(text, may_reshape=True),)


def test_an_import_can_be_tried(ctl: Ctl, operators: Operators, tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(format_map(placement_from_ranks([[[0], [1]]], num_experts=2), (3,)))
    ran = ctl("import", str(file), "--reshape", "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert "Nothing was changed." in ran.out
    (wanted,) = operators.asked[-1][2:]
    assert isinstance(wanted, MapRequest)
    assert (wanted.may_reshape, wanted.is_dry_run) == (True, True)
    assert ctl("import", str(file), "--dry-run", "--wait").code == 2
