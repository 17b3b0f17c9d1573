"""No file makes a reader of maps or loads fail in any way but a named one."""

import io
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb_service.cli.ends import Failure
from eplb_service.cli.loads import loads_of
from eplb_service.cli.map_formats import MapFormat, read_map
from eplb_service.domain.errors import EplbError
from eplb_service.domain.map_file import parse_map
from tests.wire.damage import damaged

WORDS = (
    "moe_layer_count layer_list layer_id device_count device_list device_id device_expert "
    "physical_to_logical_map logical_count initial_global_assignments num_slots layers tokens"
)
KEYS = WORDS.split()
NUMBERS = st.integers() | st.floats() | st.integers(-2, 4)
TREES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=25,
)
TEXTS = TREES.map(lambda tree: json.dumps(tree).encode())
Array = np.ndarray[Any, np.dtype[Any]]


def filled(shape: list[int], dtype: str, fill: int) -> Array:
    return np.full(shape, fill, dtype=np.dtype(dtype))


ARRAYS = st.builds(
    filled,
    st.lists(st.integers(0, 3), max_size=4),
    st.sampled_from(["<i4", "<i8", "<f4", "<f8", "?", "<U2", "<u8"]),
    st.integers(0, 3),
)


def saved(array: Array) -> bytes:
    held = io.BytesIO()
    np.save(held, array, allow_pickle=False)
    return held.getvalue()


def packed(array: Array) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, map=array)
    return held.getvalue()


FILES = (
    st.binary(max_size=200)
    | TEXTS
    | ARRAYS.map(saved)
    | ARRAYS.map(saved).flatmap(damaged)
    | ARRAYS.map(packed).flatmap(damaged)
)


@given(FILES, st.none() | st.integers(0, 5), st.none() | st.sampled_from(list(MapFormat)))
def test_any_bytes_are_a_map_or_a_named_failure(
    data: bytes, ranks: int | None, form: MapFormat | None
) -> None:
    with suppress(EplbError, Failure):
        read_map(data, num_ranks=ranks, form=form)


@given(FILES)
def test_any_bytes_are_loads_or_a_named_failure(data: bytes) -> None:
    with suppress(EplbError, Failure):
        loads_of(data)


@given(st.text(max_size=200) | TEXTS.map(bytes.decode))
def test_any_text_is_a_map_or_a_named_failure(text: str) -> None:
    with suppress(EplbError):
        parse_map(text)


def test_an_array_of_objects_is_refused_and_not_unpickled() -> None:
    held = io.BytesIO()
    np.save(held, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises((EplbError, Failure)):
        read_map(held.getvalue(), num_ranks=None)
    with pytest.raises((EplbError, Failure)):
        loads_of(held.getvalue())
