"""What must not stand in any file: places of one machine, vague names, letters beyond ASCII."""

import re
from pathlib import Path

from tests.architecture.sources import GENERATED, ROOT, python_files, repository_files, text_of

VAGUE = {"utils", "util", "common", "helpers", "helper", "misc"}
CODE_SUFFIXES = {".py", ".pyi", ".proto", ".toml", ".sh", ".yaml", ".yml", ".cfg", ".txt"}
DATA_SUFFIXES = {".binpb", ".npz", ".npy", ".png", ".gz"}
CODE_NAMES = {"Makefile", "run", "lo-only"}
HOME = re.compile(r"(?<![\w.])/(?:home|Users|root)/\w+")
REGISTRY = re.compile(r"https?://[^ /\"]*(?:py[p]i|pythonhosted|np[m]|debia[n])", re.IGNORECASE)
INDEX = re.compile(r"--?(?:extra-)?index-url|--find-links|^-i\b", re.MULTILINE)


def text_files() -> dict[Path, str]:
    """Every text file with its content."""
    return {path: text_of(path) for path in repository_files() if path.suffix not in DATA_SUFFIXES}


def test_no_module_has_a_name_that_could_hold_anything() -> None:
    vague = [path for path in python_files() if VAGUE & {path.stem, *path.parts[:-1]}]
    assert not vague


def test_no_file_names_a_place_on_one_machine() -> None:
    here = (f"{ROOT}/", f"{Path.home()}/")
    found = [
        f"{path}: {line.strip()}"
        for path, text in text_files().items()
        for line in text.splitlines()
        if HOME.search(line) or any(place in line for place in here if place != "//")
    ]
    assert not found


def test_no_file_names_a_package_registry() -> None:
    found = [path for path, text in text_files().items() if REGISTRY.search(text)]
    assert not found


def test_requirements_leave_the_choice_of_registry_to_the_user() -> None:
    lists = {p: t for p, t in text_files().items() if p.parts[0] == "requirements"}
    assert lists
    assert not [path for path, text in lists.items() if INDEX.search(text)]


def test_code_is_plain_ascii() -> None:
    code = {
        path: text
        for path, text in text_files().items()
        if (path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES)
        and not str(path).startswith(GENERATED)
    }
    assert code
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in code.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if not line.isascii()
    ]
    assert not found
