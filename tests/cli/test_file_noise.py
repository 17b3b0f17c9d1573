"""No file makes eplbctl fail in any way but a named one: contexts, recordings, words."""

import io
import os
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from eplb_service.cli.contexts import FILE_VARIABLE, read_contexts
from eplb_service.cli.durations import parse_duration
from eplb_service.cli.endpoints import endpoint
from eplb_service.cli.ends import Failure
from eplb_service.cli.loads import loads_of
from eplb_service.cli.recordings import Recording, Window, decode_recording, encode_recording
from eplb_service.domain.errors import EplbError
from tests.wire.damage import damaged

CONTEXTS = b"""version = 1
current = "prod"

[contexts."prod"]
endpoint = "localhost:50051,[::1]:50052"
deployment = "k3/0/serve/0/0"
ca = "/etc/eplb/ca.pem"
insecure = false
"""
WINDOW = Window(1e9, 600, 1.0, np.array([[4.0, 1.0]]))
RECORDING = encode_recording(Recording("k3/0/serve/0/0", "{}", (3,), (WINDOW, WINDOW)))
with np.load(io.BytesIO(RECORDING)) as _stored:
    ARRAYS = dict(_stored)
FIELDS = st.sampled_from(sorted(ARRAYS))
OTHER = st.sampled_from(
    [
        np.array("x"),
        np.array(7),
        np.array([], dtype=np.int32),
        np.array([np.nan, np.inf]),
        np.array([2**63 - 1, -1]),
        np.zeros((1, 0, 3)),
        np.zeros((2, 1, 2), dtype=np.complex128),
        np.array(["a", "b"]),
        np.array([1.5, 2.5]),
        np.array([1e300, -1e300]),
    ]
)
ONE_FOLDER = rules(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)


@ONE_FOLDER
@given(st.binary(max_size=100) | damaged(CONTEXTS))
def test_any_contexts_file_is_read_or_refused_by_name(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "contexts.toml"
    file.write_bytes(data)
    with patch.dict(os.environ, {FILE_VARIABLE: str(file)}), suppress(Failure):
        kept = read_contexts()
        if kept.current:
            kept.named(kept.current)


@given(damaged(RECORDING))
def test_any_recording_is_read_or_refused_by_name(data: bytes) -> None:
    with suppress(EplbError, Failure):
        loads_of(data)


@given(st.dictionaries(FIELDS, OTHER, max_size=3), st.sets(FIELDS, max_size=2))
def test_any_arrays_are_a_recording_or_refused_by_name(
    changed: dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"], lost: set[str]
) -> None:
    arrays = {name: value for name, value in {**ARRAYS, **changed}.items() if name not in lost}
    with suppress(EplbError):
        decode_recording(arrays)


@given(st.text(max_size=24))
def test_any_word_is_a_duration_or_an_endpoint_or_refused_by_name(text: str) -> None:
    with suppress(ValueError):
        assert parse_duration(text) >= 0
    with suppress(ArgumentTypeError):
        endpoint(text)
