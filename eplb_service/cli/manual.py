"""The reference page of eplbctl, written from its parser: `python -m eplb_service.cli.manual`."""

import os
import sys
from argparse import ArgumentParser

from eplb_service.cli.adder import SHARED_TITLE
from eplb_service.cli.parser import build_command_line

HEAD = """\
# eplbctl

Written from the program by `make cli-docs`; a test holds the two together. The options of all
verbs may stand before the verb or after it.
"""
WIDTH = "100"


def manual() -> str:
    """Return the page, in Markdown."""
    os.environ["COLUMNS"] = WIDTH  # what argparse fits its lines to
    line = build_command_line()
    parts = [HEAD, _fenced(line.parser.format_help())]
    for verb in line.verbs:
        parts += [f"## {verb.prog}", _fenced(_own_help(verb))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _own_help(verb: ArgumentParser) -> str:
    """Leave out what every verb would repeat; the example comes after it."""
    before, _, shared = verb.format_help().partition(f"{SHARED_TITLE}:\n")
    return before + shared.partition("\n\n")[2]


def _fenced(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


if __name__ == "__main__":
    sys.stdout.write(manual())
