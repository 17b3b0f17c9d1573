"""docs/cli.md says what the program says, and every verb's example is one that it understands."""

import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest

from eplb_service.cli.manual import manual
from eplb_service.cli.parser import build_command_line, build_parser

ROOT = Path(__file__).resolve().parents[2]
VERBS = build_command_line().verbs


def test_the_page_is_what_the_program_would_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert (ROOT / "docs/cli.md").read_text() == manual(), "make cli-docs writes it anew"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.prog)
def test_every_example_is_understood_and_means_the_verb_it_stands_at(verb: ArgumentParser) -> None:
    assert verb.epilog
    words = shlex.split(verb.epilog.removeprefix("example: "))
    args = build_parser().parse_args(words[1:])
    assert args.verb is verb.get_default("verb")
    assert " ".join(words).startswith(verb.prog)
