"""Where no controller answers, every verb says so on stderr, and what to do."""

import shlex
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest

from eplb_service.cli.main import main
from eplb_service.cli.parser import build_command_line
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import initial_placement

ALONE = {
    *("map validate", "map convert", "validate", "replay", "simulate", "analyze", "record stop"),
    *("context set", "context use", "context list", "context remove", "completion"),
}
"""Verbs that need no controller."""
VERBS = [
    verb
    for verb in build_command_line().verbs
    if verb.prog.removeprefix("eplbctl ") not in ALONE and "context" not in verb.prog
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.prog)
def test_it_says_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: ArgumentParser,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPLB_ENDPOINT", "127.0.0.1:1")
    np.savez("counts.npz", counts=np.ones((2, 4)))
    flat = initial_placement(num_layers=1, num_experts=4, layout=SlotLayout((2, 2)))
    Path("map.json").write_text(format_map(flat, (0,)))
    words = shlex.split((verb.epilog or "").removeprefix("example: "))[1:]
    if verb.prog == "eplbctl wait":  # which goes on asking until its deadline
        words += ("--timeout", "0.3s")
    code = main(words)
    said = capsys.readouterr()
    if verb.prog == "eplbctl doctor":
        assert code == 1
        assert "no controller answers at 127.0.0.1:1" in said.out
        assert said.err
        return
    assert (code, said.out) == (5, "")
    assert "no controller answers at 127.0.0.1:1" in said.err
    assert "Set it with --endpoint HOST:PORT or EPLB_ENDPOINT" in said.err
    assert "Traceback" not in said.err
