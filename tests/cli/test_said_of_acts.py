"""What a command says of acts: what changed, what was meant, and nothing of the kind of a read."""

import json

import pytest

from eplb_service.cli import main as door
from eplb_service.cli.costs import payback
from tests.cli.conftest import Ctl


def test_policy_set_says_what_changed(ctl: Ctl) -> None:
    ran = ctl("policy", "set", "packing")
    assert (ran.code, ran.out) == (0, 'planning.policy: "incremental" to "packing"\n')
    assert json.loads(ctl("policy", "set", "packing", "-o", "json").out)["planning.policy"]


@pytest.mark.parametrize("words", [("config", "get", "gates.min_gian")], ids=str)
def test_an_unknown_setting_is_answered_with_what_may_be_meant(
    ctl: Ctl, words: tuple[str, ...]
) -> None:
    ran = ctl(*words)
    assert ran.code == 2
    assert "did you mean gates.min_gain?" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("watch",), "interrupted\n"),
        (("top",), "interrupted\n"),
        (("apply", "7f3a"), "interrupted; what the controller has begun goes on\n"),
    ],
)
def test_an_interrupted_read_is_not_told_of_as_an_act(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(door, "_run", interrupted)
    ran = ctl(*words)
    assert (ran.code, ran.err) == (130, says)


def test_a_payback_beyond_its_bound_is_never() -> None:
    assert payback(1e9) == "1000000000 steps"
    assert payback(144280161717449216.0) == "never within 1e+09 steps"
    assert payback(float("inf")) == "never within 1e+09 steps"
