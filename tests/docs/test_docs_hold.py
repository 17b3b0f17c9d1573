"""What the documentation points at is there: files, headings, commands and their flags."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from eplb_service.cli.parser import build_command_line
from tests.docs import reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:^|[\s$(])(eplbctl .*)")
FLAG = re.compile(r"(?<!\S)(--?[a-zA-Z][a-z-]*)")


@cache
def text_of(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Headings as links name them."""
    found: set[str] = set()
    for line in FENCE.sub("", text_of(page)).splitlines():
        if line.startswith("#"):
            words = re.sub(r"[^\w\s-]", "", line.lstrip("#").strip().lower())
            found.add(re.sub(r"\s", "-", words))
    return frozenset(found)


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        if not linked.exists():
            yield target
            continue
        inside = linked.resolve().relative_to(ROOT)
        if anchor and anchor not in anchors_of(inside):
            yield target


def commands(page: Path) -> Iterator[str]:
    """Every eplbctl command, in a block or in code within a line; comments are left out."""
    text = text_of(page)
    lines = [line for block in FENCE.findall(text) for line in block.splitlines()]
    lines += [line for line in text.splitlines() if line.startswith("    ")]
    lines += INLINE.findall(FENCE.sub("", text))
    for line in lines:
        if found := COMMAND.search(line.partition(" #")[0]):
            yield found.group(1).strip()


VERBS = {
    tuple(verb.prog.split()[1:]): {
        option for action in verb._actions for option in action.option_strings
    }
    for verb in build_command_line().verbs
}
GROUPS = {path[:1] for path in VERBS if len(path) > 1}


def unknown_in(command: str) -> list[str]:
    """Flags and verbs of a command that eplbctl does not know; none for `eplbctl --help`."""
    try:
        words = shlex.split(command)[1:]
    except ValueError:
        words = command.split()[1:]
    before = ("", *words)
    named = [
        word
        for last, word in zip(before, words, strict=False)
        if re.fullmatch(r"[a-z]+", word) and not last.startswith("-")
    ][:2]
    path = next((tuple(named[:n]) for n in (2, 1) if tuple(named[:n]) in VERBS), ())
    if not path:
        is_known = not named or tuple(named[:1]) in GROUPS
        return [] if is_known else [named[0]]
    flags = [word.partition("=")[0] for word in words if FLAG.fullmatch(word.partition("=")[0])]
    return [flag for flag in flags if flag not in VERBS[path]]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not list(broken_links(page))


def test_every_command_and_flag_exists() -> None:
    wrong = {
        (str(page), command): unknown
        for page in PAGES
        for command in commands(page)
        if (unknown := unknown_in(command))
    }
    assert not wrong


def test_the_api_page_is_what_docstrings_and_protos_say() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "make api-docs"


def test_enough_is_looked_at() -> None:
    found = [command for page in PAGES for command in commands(page)]
    assert len(PAGES) > 15
    assert len(found) > 50


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ("eplbctl frobnicate", ["frobnicate"]),
        ("eplbctl heat --cvs", ["--cvs"]),
        ("eplbctl config set budget.max_moves=3 --now", ["--now"]),
        ("eplbctl --endpoint HOST:PORT status -o json", []),
        ("eplbctl -o yaml", []),
        ("eplbctl config", []),
    ],
)
def test_what_does_not_exist_is_found(command: str, unknown: list[str]) -> None:
    assert unknown_in(command) == unknown
