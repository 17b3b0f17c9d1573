"""Verbs that look again and again, and the difference of placements."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eplb_service.cli.follow import Goal, reached
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.protocol.messages import HaltStatus
from tests.cli.conftest import Ctl
from tests.server import views
from tests.server.desks import Operators


def test_settled_means_no_plan_no_halt_and_all_ranks_there() -> None:
    settled = views.a_settled_status()
    assert reached(Goal.SETTLED, settled)
    running = views.a_status().operation.running
    assert running is not None
    for other in (
        replace(settled, operation=replace(settled.operation, running=running)),
        replace(
            settled,
            operation=replace(settled.operation, halt=HaltStatus(3, is_active=True, reason="x")),
        ),
        replace(settled, ranks=(replace(settled.ranks[0], epoch=40), settled.ranks[1])),
        replace(settled, ranks=(replace(settled.ranks[0], is_connected=False),)),
        replace(settled, ranks=()),
    ):
        assert not reached(Goal.SETTLED, other)


def test_other_goals() -> None:
    busy, quiet, settled = views.a_status(), views.a_quiet_status(), views.a_settled_status()
    assert [reached(Goal.IDLE, view) for view in (busy, quiet)] == [False, True]
    assert [reached(Goal.LOAD, view) for view in (busy, quiet)] == [True, False]
    assert [reached(Goal.CONNECTED, view) for view in (busy, quiet, settled)] == [
        False,
        False,
        True,
    ]


def test_wait_ends_when_the_deployment_is_as_asked(ctl: Ctl, operators: Operators) -> None:
    ran = ctl("wait", "--for", "load", "--deployment", "m/i/serve/0/g")
    assert ran.code == 2
    assert "known: m/i/serve/0/g, m/i/draft/0/g" in ran.err
    operators.statuses = (views.a_settled_status(),)
    ran = ctl("wait")
    assert (ran.code, ran.err) == (0, "")
    assert "epoch 41" in ran.out


def test_wait_gives_up_at_its_deadline_and_says_what_goes_on(
    ctl: Ctl, operators: Operators
) -> None:
    operators.statuses = (views.a_status(),)
    ran = ctl("wait", "--for", "settled", "--timeout", "2s")
    assert (ran.code, ran.out) == (5, "")
    assert "what was waited for (settled) is not over after 2.0s" in ran.err


def test_watch_prints_each_event_once_oldest_first(ctl: Ctl) -> None:
    entries = views.a_history().entries
    ran = ctl("watch", "--timeout", "1.2s", "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    told = [json.loads(line) for line in ran.out.splitlines()]
    assert [event["text"] for event in told] == [entry.text for entry in reversed(entries)]
    first = ctl("watch", "--count", "1").out
    assert first.count("\n") == 1
    assert entries[-1].text in first


def test_top_draws_status_heat_and_events(ctl: Ctl, operators: Operators) -> None:
    operators.statuses = (views.a_status(),)
    ran = ctl("top", "--count", "2", "--every", "0.1s")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("hottest experts") == 2
    assert "\x1b" not in ran.out
    assert ctl("top", "-o", "json").code == 2


def test_heat_as_csv_has_a_line_per_layer_and_expert(ctl: Ctl) -> None:
    ran = ctl("heat", "--csv")
    view = views.a_heat()
    head, *lines = ran.out.splitlines()
    assert head == "layer,model_layer,expert,tokens"
    assert len(lines) == view.tokens.size
    cells = [line.split(",") for line in lines]
    assert [float(cell[3]) for cell in cells] == view.tokens.ravel().tolist()


def _map(folder: Path, name: str, ranks: list[list[list[int]]]) -> str:
    path = folder / name
    path.write_text(format_map(placement_from_ranks(ranks, num_experts=4), (3, 7)))
    return str(path)


def test_diff_compares_what_ranks_hold_whatever_the_order(ctl: Ctl, tmp_path: Path) -> None:
    a = _map(tmp_path, "a", [[[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    b = _map(tmp_path, "b", [[[1, 0], [3, 2]], [[0, 3], [2, 1]]])
    assert ctl("diff", a, a, "--exit-code").code == 0
    ran = ctl("diff", a, b, "--exit-code", "-o", "json")
    assert ran.code == 10
    assert json.loads(ran.out)["changes"] == [
        {"layer": 7, "rank": 0, "gained": [3], "lost": [1]},
        {"layer": 7, "rank": 1, "gained": [1], "lost": [3]},
    ]
    assert "2 experts held by ranks that did not hold them before" in ctl("diff", a, b).out


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([[[0, 1, 2, 3]], [[0, 1, 2, 3]]], "layer 3 has 2 ranks and 1"),
    ],
)
def test_unlike_shapes_have_no_difference(
    ctl: Ctl, tmp_path: Path, ranks: list[list[list[int]]], says: str
) -> None:
    a = _map(tmp_path, "a", [[[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    ran = ctl("diff", a, _map(tmp_path, "b", ranks))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_diff_asks_for_epochs(ctl: Ctl, operators: Operators, tmp_path: Path) -> None:
    a = _map(tmp_path, "a", [[[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    ctl("diff", "40", a)
    ctl("diff", "served", a)
    assert [asked[:3] for asked in operators.asked] == [("export", "", 40), ("export", "", 0)]
