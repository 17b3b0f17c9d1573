"""Every example that a verb's help gives is run as it stands and ends as it should."""

import shlex
from argparse import ArgumentParser
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eplb_service.cli.main import main
from eplb_service.cli.parser import build_command_line
from eplb_service.cli.recordings import Recording, Window, encode_recording
from eplb_service.controller.views import RunView
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import initial_placement, placement_from_ranks
from tests.cli.conftest import Ctl
from tests.cli.recorders import recorder
from tests.server import views
from tests.server.desks import Operators

VERBS = build_command_line().verbs
SERVED = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
ENDS = {
    "eplbctl top": ("--count", "1"),
    "eplbctl watch": ("--timeout", "0.5s"),
    "eplbctl record start": ("--every", "0.1s", "--for", "0.3s"),
}
"""What must be added for an example to end that goes on until it is stopped, or for an hour."""
CODES = {"eplbctl plan": 10, "eplbctl doctor": 1}
"""Exit codes other than 0: that plan would change something, and something is wrong there."""
SAYS = {"eplbctl doctor": "things wrong; the list says what to do"}
"""What stands on stderr, where anything should."""


@pytest.fixture
def folder(tmp_path: Path, operators: Operators, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that examples name, and a controller that has what they ask for."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("counts.npz", counts=rng.integers(1, 1000, (2, 64)))
    windows = tuple(
        Window(1e9 + nth, 600, 1.0, rng.integers(1, 1000, (2, 64)).astype(np.float64))
        for nth in range(3)
    )
    layout = SlotLayout((2,) * 32)
    begun = format_map(initial_placement(num_layers=2, num_experts=64, layout=layout), (3, 4))
    recorded = Recording("m/i/serve/0/g", begun, (3, 4), windows)
    Path("recorded.npz").write_bytes(encode_recording(recorded))
    operators.map_text = format_map(SERVED, (3,))
    Path("map.json").write_text(operators.map_text)
    operators.statuses = (views.a_settled_status(),)

    async def done(_deployment: str, _plan_id: str) -> RunView:
        return replace(views.a_run(), phase="done", text="")

    async def settings(_deployment: str) -> dict[str, str]:
        return {"budget.max_moves": "512"}

    monkeypatch.setattr(operators, "run", done)
    monkeypatch.setattr(operators, "get_config", settings)
    return tmp_path


def fresh(path: Path) -> None:
    """Nothing is there now."""
    path.unlink()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.prog)
def test_the_example_of_every_verb_runs(ctl: Ctl, folder: Path, verb: ArgumentParser) -> None:
    assert verb.epilog
    words = shlex.split(verb.epilog.removeprefix("example: "))[1:]
    assert main(["context", "set", "prod", "--endpoint", "127.0.0.1:1"]) == 0
    if words[0] == "record":
        fresh(folder / words[2])
    is_stop = verb.prog == "eplbctl record stop"
    with recorder(folder / words[2]) if is_stop else nullcontext():
        ran = ctl(*words, *ENDS.get(verb.prog, ()))
    assert ran.code == CODES.get(verb.prog, 0)
    assert SAYS[verb.prog] in ran.err if verb.prog in SAYS else not ran.err
    assert ran.out or words[0] == "context"
