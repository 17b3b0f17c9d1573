"""Ranks that a controller refused are named by every look at it, with why."""

import json

import pytest

from eplb_service.cli.show_status import show_statuses
from eplb_service.controller.views import RefusalView
from tests.cli.conftest import Ctl, Serving
from tests.server.desks import Operators


def a_refusal(rank: int, what: str) -> RefusalView:
    why = f"rank {rank} of new/0/serve/0/0 is refused: {what}"
    return RefusalView("new/0/serve/0/0", rank, why, 3.0)


def test_ranks_that_were_refused_are_named_with_why_and_not_as_none() -> None:
    twice = "its placement is unsound: expert 3 twice on one rank"
    shown = show_statuses((), (a_refusal(0, twice), a_refusal(1, twice), a_refusal(2, "other")))
    first, second = shown.splitlines()
    assert first.startswith("refused      ranks 0, 1 of new/0/serve/0/0, last 3")
    assert first.endswith(twice)
    assert second.startswith("refused      rank 2 of new/0/serve/0/0")
    assert "no deployment is registered" not in shown
    many = tuple(a_refusal(rank, f"reason {rank}") for rank in range(12))
    assert show_statuses((), many).splitlines()[-1].endswith("and for 4 more reasons")


@pytest.mark.parametrize("words", [("status",), ("status", "-o", "json"), ("doctor",)], ids=str)
def test_a_refused_rank_is_told_by_every_look(
    ctl: Ctl, operators: Operators, one_server: Serving, words: tuple[str, ...]
) -> None:
    operators.statuses = ()
    refusal = RefusalView("new/0/serve/0/0", 3, "expert 7 sits more than once", 2.0)
    one_server.ranks.refusals = (refusal,)
    try:
        ran = ctl(*words, *(("--metrics", "127.0.0.1:9") if "doctor" in words else ()))
    finally:
        one_server.ranks.refusals = ()
    assert ran.code == (1 if "doctor" in words else 0)
    assert "rank 3 of new/0/serve/0/0" in ran.out + ran.err
    assert "expert 7 sits more than once" in ran.out + ran.err
    if "json" in words:
        assert json.loads(ran.out) == []
