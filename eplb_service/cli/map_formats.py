"""Placements as other engines write them down, read and written.

Axes    L layers   N ranks   S slots of a rank   P slots

Formats (from the engines' own documentation)
    vllm-ascend    domain.map_file: JSON, ranks and slots per layer
    sglang         JSON object with `physical_to_logical_map` [L, P]; a row for every hidden
                   layer, dense ones too, numbered from 0
    tensorrt-llm   YAML object with `num_slots` and `initial_global_assignments`, an object of
                   model layer -> [P]
    phy2log        an array [L, P]: .npy, an .npz of one array, or JSON

All but the first know slots and no ranks: P slots are dealt to ranks evenly, in order.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import numpy as np

from eplb_service.cli.ends import invalid
from eplb_service.cli.files import NO_ARRAYS
from eplb_service.domain.errors import InvalidMapFile
from eplb_service.domain.json_text import read_json
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.map_file import MapFile, format_map, parse_map
from eplb_service.domain.placement import placement_from_ranks

SGLANG_KEY = "physical_to_logical_map"
TENSORRT_KEY = "initial_global_assignments"
NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"
Rows = Mapping[int, Sequence[int]]


class MapFormat(StrEnum):
    """Who writes placements so."""

    ASCEND = "vllm-ascend"
    SGLANG = "sglang"
    TENSORRT = "tensorrt-llm"
    PHY2LOG = "phy2log"


@dataclass(frozen=True, slots=True)
class ReadMap:
    """A file's layers with the format they were in."""

    found: MapFile
    format: MapFormat


def read_map(data: bytes, *, num_ranks: int | None, form: MapFormat | None = None) -> ReadMap:
    """Read a file's bytes, in the format that they look like or the one that is named.

    num_ranks    ranks to deal slots to; where the format knows its ranks, what it must agree with
    Raises InvalidMapFile or Failure, saying what is wrong.
    """
    if data.startswith((NPY, ZIP)):
        return ReadMap(_dealt(_array_rows(data), num_ranks), _agreed(MapFormat.PHY2LOG, form))
    text = _text(data)
    tree = _tree(text)
    match tree:
        case list():
            rows, seen = _listed_rows(cast("object", tree)), MapFormat.PHY2LOG
        case dict() if SGLANG_KEY in tree:
            rows = _listed_rows(cast("dict[str, object]", tree)[SGLANG_KEY])
            seen = MapFormat.SGLANG
        case dict() if TENSORRT_KEY in tree:
            rows, seen = _tensorrt_rows(cast("dict[str, object]", tree)), MapFormat.TENSORRT
        case _:
            _agreed(MapFormat.ASCEND, form)
            return ReadMap(_of_ranks(parse_map(text), num_ranks), MapFormat.ASCEND)
    return ReadMap(_dealt(rows, num_ranks), _agreed(seen, form))


def write_map(found: MapFile, form: MapFormat, *, hidden_layers: int | None) -> bytes:
    """Write layers down in a format; raises Failure where it cannot hold them.

    hidden_layers    all layers of the model, dense ones too, which only sglang counts
    """
    if form is MapFormat.ASCEND:
        ranks = [[list(rank) for rank in layer] for _, layer in found.layers]
        highest = max(max(rank, default=-1) for layer in ranks for rank in layer)
        placement = placement_from_ranks(ranks, num_experts=highest + 1)
        return format_map(placement, found.layer_ids).encode()
    rows = _flat(found, form)
    writers: dict[MapFormat, Callable[[], bytes]] = {
        MapFormat.SGLANG: lambda: _as_sglang(rows, hidden_layers),
        MapFormat.TENSORRT: lambda: _as_tensorrt(rows),
        MapFormat.PHY2LOG: lambda: _as_array(rows),
    }
    return writers[form]()


def _agreed(seen: MapFormat, named: MapFormat | None) -> MapFormat:
    if named not in {None, seen}:
        raise InvalidMapFile(f"the file looks like {seen}, and {named} was named; nothing changed")
    return seen


def _of_ranks(found: MapFile, num_ranks: int | None) -> MapFile:
    own = len(found.layers[0][1])
    if num_ranks not in {None, own}:
        raise InvalidMapFile(
            f"the file has {own} ranks, and --ranks says {num_ranks}; nothing changed"
        )
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidMapFile(
            "the file is neither text in UTF-8 nor a numpy array; PyTorch's .pt files are not "
            "opened, as they may run code: write the map as JSON instead; nothing changed"
        ) from error


def _tree(text: str) -> object:
    """Parse JSON, or YAML where it is none; text that is neither goes on as JSON's own error."""
    try:
        return read_json(text)
    except ValueError:
        return _yaml(text) if TENSORRT_KEY in text else None


def _yaml(text: str) -> object:
    try:
        from eplb_service.settings.yaml_text import read_yaml  # noqa: PLC0415 -- needs PyYAML
    except ModuleNotFoundError as error:
        raise invalid("YAML needs PyYAML, which comes with the extra `service`") from error
    try:
        return read_yaml(text)
    except ValueError as error:
        raise InvalidMapFile(f"{error}; nothing changed") from error


def _array_rows(data: bytes) -> Rows:
    try:
        if data.startswith(ZIP):
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                arrays = [np.asarray(stored[name]) for name in stored.files]
        else:
            arrays = [np.asarray(np.load(io.BytesIO(data), allow_pickle=False))]
    except NO_ARRAYS as error:
        raise InvalidMapFile(f"no numpy array: {error}; nothing changed") from error
    if len(arrays) != 1:
        raise InvalidMapFile(f"the .npz holds {len(arrays)} arrays; expected one; nothing changed")
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = arrays[0]
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidMapFile(
            f"the array is {array.dtype} {list(array.shape)}; expected whole numbers "
            "[layers, slots]; nothing changed"
        )
    return _listed_rows(array.tolist())


def _listed_rows(rows: object) -> Rows:
    if not isinstance(rows, list) or not rows:
        raise InvalidMapFile("expected an array [layers, slots] that is not empty; nothing changed")
    listed = cast("list[object]", rows)
    return {at: _row(row, f"row {at}") for at, row in enumerate(listed)}


def _tensorrt_rows(tree: Mapping[str, object]) -> Rows:
    given = tree[TENSORRT_KEY]
    if not isinstance(given, dict) or not given:
        raise InvalidMapFile(f"{TENSORRT_KEY} is no object of layers; nothing changed")
    rows: dict[int, Sequence[int]] = {}
    for key, row in cast("dict[object, object]", given).items():
        layer = int(key) if isinstance(key, str) and key.isdecimal() else key
        if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0 or layer in rows:
            raise InvalidMapFile(
                f"{TENSORRT_KEY}: {key!r} is no layer, or there twice; nothing changed"
            )
        rows[layer] = _row(row, f"layer {layer}")
    num_slots = tree.get("num_slots")
    wrong = [layer for layer, row in rows.items() if len(row) != num_slots]
    if num_slots is not None and wrong:
        raise InvalidMapFile(
            f"num_slots is {num_slots}, but layer {wrong[0]} has {len(rows[wrong[0]])}; "
            "nothing changed"
        )
    return rows


def _row(row: object, where: str) -> Sequence[int]:
    if not isinstance(row, list) or not row:
        raise InvalidMapFile(f"{where} is no array of slots; nothing changed")
    for expert in cast("list[object]", row):
        if isinstance(expert, bool) or not isinstance(expert, int) or not -1 <= expert < 2**31:
            raise InvalidMapFile(
                f"{where} holds {expert!r}; expected expert ids, or -1; nothing changed"
            )
    return cast("list[int]", row)


def _dealt(rows: Rows, num_ranks: int | None) -> MapFile:
    """Deal every layer's slots to ranks."""
    if num_ranks is None:
        raise invalid("this format names no ranks; say how many there are with --ranks N")
    widths = {len(row) for row in rows.values()}
    if len(widths) != 1:
        raise InvalidMapFile(f"layers have {sorted(widths)} slots; expected as many in all")
    each, rest = divmod(widths.pop(), num_ranks) if num_ranks else (0, 1)
    if rest or not each:
        raise invalid(
            f"{len(next(iter(rows.values())))} slots do not divide into {num_ranks} ranks; "
            "expected as many on each"
        )
    layout = SlotLayout((each,) * num_ranks)
    layers = (
        (layer, tuple(tuple(row[layout.slots_of(rank)]) for rank in range(num_ranks)))
        for layer, row in sorted(rows.items())
    )
    return MapFile(tuple(layers))


def _flat(found: MapFile, form: MapFormat) -> dict[int, list[int]]:
    """Return all slots of each layer in one row; raises Failure where ranks would be lost."""
    for layer, ranks in found.layers:
        if len({len(rank) for rank in ranks}) != 1:
            raise invalid(
                f"layer {layer} has ranks of unequal slots, which {form} cannot say; "
                f"{MapFormat.ASCEND} can"
            )
        if form is not MapFormat.PHY2LOG and any(expert < 0 for rank in ranks for expert in rank):
            raise invalid(f"layer {layer} has an empty slot, which {form} cannot say")
    return {layer: [e for rank in ranks for e in rank] for layer, ranks in found.layers}


def _as_sglang(rows: Rows, hidden_layers: int | None) -> bytes:
    count = hidden_layers or max(rows) + 1
    if count <= max(rows):
        raise invalid(f"layer {max(rows)} is none of {count} hidden layers")
    first = next(iter(rows.values()))
    # Rows of dense layers are never read; the plain order is what sglang itself puts there.
    plain = [slot % (max(first) + 1) for slot in range(len(first))]
    table = [list(rows.get(layer, plain)) for layer in range(count)]
    return f"{json.dumps({SGLANG_KEY: table})}\n".encode()


def _as_tensorrt(rows: Rows) -> bytes:
    """Write YAML by hand: one line a layer, as people write it."""
    num_slots = len(next(iter(rows.values())))
    lines = [f"num_slots: {num_slots}", "layer_updates_per_iter: 0", f"{TENSORRT_KEY}:"]
    lines += [f"  {layer}: {json.dumps(list(row))}" for layer, row in rows.items()]
    return ("\n".join(lines) + "\n").encode()


def _as_array(rows: Rows) -> bytes:
    held = io.BytesIO()
    np.save(held, np.array(list(rows.values()), dtype=np.int32), allow_pickle=False)
    return held.getvalue()
