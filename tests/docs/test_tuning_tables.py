"""The tables of docs/tuning.md are what its commands print."""

import re
import shlex
from pathlib import Path

import pytest

from eplb_service.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
GAP = re.compile(r"  +")


def told(verb: str) -> tuple[list[str], list[str], list[list[str]]]:
    """The command of a verb on the page, and heads and rows of the table that follows it."""
    command = next(re.finditer(rf"^eplbctl {verb} (.+olmoe.+)$", PAGE, re.MULTILINE))
    lines = PAGE[command.end() :].split("\n\n| ", 1)[1].split("\n\n", 1)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return [verb, *shlex.split(command[1])], rows[0], rows[2:]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command that ends well prints."""
    code = main(list(words))
    ran = capsys.readouterr()
    assert (code, ran.err) == (0, "")
    return ran.out


def printed(text: str) -> list[dict[str, str]]:
    """The rows of the table that a command printed, by head."""
    table = [GAP.split(line.strip()) for line in text.split("\n\n")[1].splitlines()]
    return [dict(zip(table[0], row, strict=True)) for row in table[1:]]


@pytest.mark.parametrize("verb", ["simulate", "replay"])
def test_a_table_is_what_its_command_prints(
    capsys: pytest.CaptureFixture[str], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words, heads, rows = told(verb)
    found = printed(said(capsys, *words))
    if verb == "simulate":
        found = [row for row in found if row["policy"] == "incremental"]
    assert [[row[head] for head in heads] for row in found] == rows


def test_advice_is_what_analyze_says(capsys: pytest.CaptureFixture[str]) -> None:
    times = ("--step-ms", "40", "--stall-ms", "900")
    good = ("--imbalance-now", "1.4", "--imbalance-then", "1.05", "--expert-ms", "12")
    assert said(capsys, "analyze", *good, *times).strip() in PAGE
    poor = ("--imbalance-now", "1.08", "--imbalance-then", "1.01", "--expert-ms", "4")
    advice = said(capsys, "analyze", *poor, *times, "--interval-steps", "3000")
    assert advice.startswith("advice       not now")
    assert "3471 steps" in advice
