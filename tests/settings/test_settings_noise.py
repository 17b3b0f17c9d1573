"""No file, variable or override makes reading settings fail in any way but a named one."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from eplb_service.domain.errors import InvalidSettings
from eplb_service.settings.settings import Settings, merge_overrides
from eplb_service.settings.sources import load_settings
from tests.wire.damage import damaged

GOOD = Settings().model_dump(mode="json")
NAMES = [f"{section}.{name}" for section, fields in GOOD.items() for name in fields]
FILES = (
    st.binary(max_size=200)
    | damaged(json.dumps(GOOD).encode())
    | damaged(yaml.safe_dump(GOOD).encode())
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
VARIABLES = st.dictionaries(
    st.sampled_from([f"EPLB_{name.replace('.', '__').upper()}" for name in NAMES])
    | st.sampled_from(["EPLB_SERVER", "EPLB_X__Y", "EPLB___", "EPLB_STORE__URL__X"]),
    WORDS | VALUES.map(json.dumps),
    max_size=4,
)
ONE_FOLDER = rules(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)


@ONE_FOLDER
@given(FILES, st.sampled_from([".yaml", ".json"]))
def test_any_file_is_settings_or_a_named_failure(tmp_path: Path, data: bytes, suffix: str) -> None:
    file = tmp_path / f"settings{suffix}"
    file.write_bytes(data)
    with suppress(InvalidSettings):
        load_settings(file)


@given(VARIABLES)
def test_any_environment_is_settings_or_a_named_failure(told: Mapping[str, str]) -> None:
    with patch.dict(os.environ, told), suppress(InvalidSettings):
        load_settings(None)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_any_overrides_are_taken_whole_or_refused_by_name(values: Mapping[str, object]) -> None:
    with suppress(InvalidSettings):
        Settings().with_overrides(json.dumps(values))


@given(damaged(b'{"budget.max_moves": 3}').map(lambda data: data.decode(errors="replace")))
def test_any_kept_overrides_are_read_or_refused_by_name(text: str) -> None:
    with suppress(InvalidSettings):
        Settings().with_overrides(text)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_value_of_an_operator_is_merged_or_refused_by_name(name: str, value: str) -> None:
    with suppress(InvalidSettings):
        merge_overrides("{}", {name: value})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(number: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(f'{{"planning": {{"interval_s": {number}}}}}')
    with pytest.raises(InvalidSettings):
        load_settings(file)
