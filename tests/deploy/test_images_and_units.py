"""Dockerfiles and systemd units: no root, no secret, and only commands that the program knows."""

import configparser
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from eplb_service.host.main import INVALID, WRONG_STATE, service_parser
from tests.architecture.sources import ROOT

IMAGES = sorted((ROOT / "deploy" / "images").glob("*.Dockerfile"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
HADOLINT = str(Path(sys.executable).parent / "hadolint")
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def instructions(image: Path) -> list[tuple[str, str]]:
    """Keyword and rest of every instruction, lines joined, comments left out."""
    lines = [line for line in image.read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(k, rest.strip()) for k, _, rest in (w.partition(" ") for w in whole.splitlines()) if k]


def stem(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("image", IMAGES, ids=stem)
def test_an_image_runs_as_a_number_that_is_not_root(image: Path) -> None:
    told = dict(one.split("=") for k, one in instructions(image) if k == "ARG" and "=" in one)
    last = [rest for keyword, rest in instructions(image) if keyword == "USER"][-1]
    user = re.sub(r"\$\{(\w+)\}", lambda name: told[name[1]], last)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("image", IMAGES, ids=stem)
def test_an_image_copies_only_what_is_tracked_and_starts_only_what_is_installed(
    image: Path,
) -> None:
    for keyword, rest in instructions(image):
        if keyword in ("COPY", "ADD") and "--from=" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
        if keyword in ("CMD", "ENTRYPOINT"):
            assert re.findall(r'"([^"]+)"', rest)[0] in SCRIPTS
        assert keyword != "ADD", "COPY says what it does"


@pytest.mark.parametrize("image", IMAGES, ids=stem)
def test_an_image_says_its_base_by_an_argument(image: Path) -> None:
    froms = [rest for keyword, rest in instructions(image) if keyword == "FROM"]
    assert {one.split()[0] for one in froms} == {"${BASE}"}
    bases = next(rest for keyword, rest in instructions(image) if keyword == "ARG")
    assert bases == ("BASE" if image.stem == "agent" else "BASE=python:3.11-slim-bookworm")


def test_the_linter_of_dockerfiles_finds_nothing_and_would_find_something(tmp_path: Path) -> None:
    config = ["--config", str(ROOT / "deploy" / "images" / "hadolint.yaml")]
    clean = subprocess.run([HADOLINT, *config, *map(str, IMAGES)], capture_output=True, check=False)
    assert clean.returncode == 0, clean.stdout.decode()
    bad = tmp_path / "bad.Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    found = subprocess.run([HADOLINT, *config, str(bad)], capture_output=True, check=False)
    assert found.returncode != 0


def unit(path: Path) -> configparser.ConfigParser:
    """A unit as systemd reads it, as far as these need."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", UNITS, ids=stem)
def test_a_unit_starts_a_command_that_the_program_knows(path: Path) -> None:
    program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
    assert Path(program).name == "eplb-service"
    service_parser().parse_args(words)


@pytest.mark.parametrize("path", UNITS, ids=stem)
def test_a_unit_does_not_fight_a_controller_that_took_over(path: Path) -> None:
    section = unit(path)["Service"]
    kept = {int(code) for code in section["RestartPreventExitStatus"].split()}
    assert INVALID in kept, "settings do not mend themselves"
    is_plain = " run " in section["ExecStart"]
    assert (WRONG_STATE in kept) == is_plain, "a fenced keeper stands aside and does not end"
    assert section["Restart"] == "always"
    assert section.get("User", "") != "root"
    assert section["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize("path", UNITS, ids=stem)
def test_systemd_itself_knows_every_line_of_a_unit(path: Path, tmp_path: Path) -> None:
    here = tmp_path / path.name
    here.write_text(path.read_text().replace("/opt/eplb/bin/eplb-service", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(here)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if path.name in line]
