"""Every command of eplb-service has an example in its help that the program understands."""

import re
import shlex

import pytest

from eplb_service.host.main import service_parser

COMMANDS = ("up", "run", "down", "store backup", "store restore")


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        service_parser().parse_args([*words, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_all_commands_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    listed = re.findall(r"^    ([a-z]+) {2,}", help_of([], capsys), re.MULTILINE)
    assert set(listed) == {command.split()[0] for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_means_the_command_it_stands_at(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    example = help_of(command.split(), capsys).partition("example: ")[2]
    words = shlex.split(example)
    assert words[: len(command.split()) + 1] == ["eplb-service", *command.split()]
    service_parser().parse_args(words[1:])
