"""Settings come from defaults, below a file, below the environment; wrong ones are all told."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.report import Phase
from eplb_service.settings import Settings, load_settings
from eplb_service.settings.yaml_text import read_yaml


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EPLB_ENDPOINT", "EPLB_STORE__URL"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, text: str, name: str = "eplb.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def refusal(file: Path | None = None) -> str:
    with pytest.raises(InvalidSettings) as refused:
        load_settings(file)
    return str(refused.value)


def test_nothing_given_means_the_defaults() -> None:
    assert load_settings() == Settings()


def test_the_environment_is_above_the_file_and_the_file_above_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "planning: {interval_s: 5, policy: packing}\nregistration: {num_redundant: 8}\n"
    file = written(tmp_path, text)
    monkeypatch.setenv("EPLB_PLANNING__INTERVAL_S", "7.5")
    monkeypatch.setenv("EPLB_PLANNING__PHASE", "decode")
    got = load_settings(file)
    assert (got.planning.interval_s, got.planning.policy) == (7.5, "packing")
    assert got.planning.phase is Phase.DECODE
    assert got.planning.deadline_s == Settings().planning.deadline_s
    assert got.registration.num_redundant == 8


def test_a_json_file_is_read_and_an_empty_one_changes_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, '{"server": {"port": 0}}', "eplb.json")
    assert load_settings(file).server.port == 0
    assert load_settings(written(tmp_path, "")) == Settings()


def test_every_wrong_field_is_named_with_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "server: {port: 70000}\nplanning: {interval_s: soon, polcy: x}\n")
    monkeypatch.setenv("EPLB_STORE__DEADLINE_S", "-1")
    text = refusal(file)
    assert "server.port = 70000: input should be less than or equal to 65535" in text
    assert "planning.interval_s = 'soon': input should be a valid number" in text
    assert "planning.polcy is not a setting" in text
    assert "store.deadline_s = '-1': input should be greater than 0" in text


def test_a_variable_of_a_section_that_does_not_exist_is_not_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPLB_PLANING__POLICY", "packing")
    assert "EPLB_PLANING__POLICY names no section of the settings; did you mean planning" in (
        refusal()
    )


def test_variables_of_the_command_line_and_of_agents_are_let_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPLB_ENDPOINT", "here:1")
    monkeypatch.setenv("EPLB_AGENT_DEPLOYMENT__MODEL", "tiny")
    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gone.yaml", None, "No such file"),
        ("broken.yaml", "a: [", "is not one YAML object"),
        ("list.yaml", "- 1", "is not one YAML object"),
        ("broken.json", "{", "is not one JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_as_settings_is_named(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    file = tmp_path / name if text is None else written(tmp_path, text, name)
    assert re.search(rf"settings file {file}.*{says}", refusal(file))


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    inner = [f.annotation for f in model.model_fields.values()]
    nested = [m for m in inner if isinstance(m, type) and issubclass(m, BaseModel)]
    return [model, *(n for m in nested for n in models(m))]


def test_every_section_is_frozen_and_closed() -> None:
    open_ones = [
        model.__name__
        for model in models(Settings)
        if not model.model_config.get("frozen") or model.model_config.get("extra") != "forbid"
    ]
    assert not open_ones


def test_every_setting_is_explained() -> None:
    source = Path(__file__).parents[2] / "eplb_service" / "settings" / "tree.py"
    lines = source.read_text().splitlines()
    fields = [at for at, line in enumerate(lines) if re.match(r"    \w+: .* = ", line)]
    assert len(fields) > 15
    unexplained = [lines[at] for at in fields if not lines[at + 1].startswith('    """')]
    assert not unexplained


def test_an_interval_holds_whole_reports(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "window: {interval_steps: 50, report_every_steps: 20}"))
    assert "must be a multiple of report_every_steps, 20, but is 50" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("planning: {policy: nonsense}", "incremental"),
        ("gates: {trigger_imbalance: .inf}", "finite"),
        ("store: {deadline_s: .inf}", "finite"),
        ("gates: {cooldown_s: .nan}", "finite"),
    ],
)
def test_a_value_that_could_never_work_is_refused_at_the_start(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(InvalidSettings, match=said):
        load_settings(written(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("flow.yaml", "server: {port: 1, port: 2}", "port occurs twice .* line 1"),
        ("far.yaml", "server:\n  port: 1\nstore: {}\nserver: {}\n", "server .* line 4 .* line 1"),
        ("same.yaml", "a:\n  1: x\n  0x1: y\n", "0x1 occurs twice .* line 3 .* line 2"),
        ("both.json", '{"server": {"port": 1, "port": 2}}', "port occurs more than once"),
    ],
)
def test_a_key_that_comes_twice_is_refused_by_name(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    assert re.search(says, refusal(written(tmp_path, text, name)))


def test_merged_keys_may_be_overridden(tmp_path: Path) -> None:
    text = "server: &one {port: 1}\nstore: {}\n"
    assert load_settings(written(tmp_path, text)).server.port == 1
    assert read_yaml("a: &a {x: 1}\nb: {<<: *a, x: 2}") == {"a": {"x": 1}, "b": {"x": 2}}


DEEP = "[" * 100_000
LONG = "9" * 5000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", f"server: {{port: {LONG}}}"),
        ("a.json", f'{{"server": {{"port": {LONG}}}}}'),
        ("a.json", DEEP),
        ("a.yaml", "[" * 2000),
        ("a.yaml", "server: 3"),
        ("a.json", '{"server": []}'),
        ("a.yaml", "at: 2024-99-99"),
        ("a.yaml", "!!map [1]"),
        ("a.yaml", "!!seq a: 1"),
        ("a.yaml", "- 1"),
    ],
)
def test_no_refusal_quotes_the_language_that_reads(tmp_path: Path, name: str, text: str) -> None:
    said = refusal(written(tmp_path, text, name))
    for foreign in ("recursion", "sys.", "instance of", "ServerSettings", "pydantic", "must be in"):
        assert foreign not in said


def test_a_variable_is_refused_in_own_words_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPLB_SERVER", "3")
    assert "server = '3': expected a section" in refusal() or "server = 3: expected a section" in (
        refusal()
    )
