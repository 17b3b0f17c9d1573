"""The expert-map file that vllm-ascend reads and writes, as text in and text out.

Axes    L MoE layers   N ranks   S slots of a rank

Format (vllm-ascend, expert_map_path and expert_map_record_path): a JSON object with
`moe_layer_count` and `layer_list`, an array of objects with `layer_id`, `device_count`
and `device_list`, an array of objects with `device_id` and `device_expert`, the logical
ids of that rank's slots in local order. -1 marks a slot declared empty.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from eplb_service.domain.errors import InvalidMapFile, MisfitPlacement
from eplb_service.domain.json_text import read_json
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import EMPTY, Placement, placement_from_ranks

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class MapFile:
    """What a file says, before it is held against a deployment."""

    layers: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    """Layer id and [N][S] logical ids, by ascending layer id."""

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Ids as the file numbers its layers."""
        return tuple(layer_id for layer_id, _ in self.layers)


def parse_map(text: str) -> MapFile:
    """Read a file's text; raises InvalidMapFile that says where it is wrong."""
    found = _json(text)
    listed = _array(_member(found, "layer_list", "the file"), "layer_list")
    count = _number(_member(found, "moe_layer_count", "the file"), "moe_layer_count")
    if count != len(listed):
        raise _wrong(f"moe_layer_count is {count}, but layer_list has {len(listed)} entries")
    layers = sorted(_layer(entry, f"layer_list[{at}]") for at, entry in enumerate(listed))
    ids = [layer_id for layer_id, _ in layers]
    twice = sorted({layer_id for layer_id in ids if ids.count(layer_id) > 1})
    if twice:
        raise _wrong(f"layer_id {twice[0]} occurs more than once in layer_list")
    if not layers:
        raise _wrong("layer_list is empty")
    return MapFile(tuple(layers))


def placement_of(
    found: MapFile, *, model_layers: Sequence[int], num_experts: int, num_shared: int = 0
) -> Placement:
    """Return the placement of a deployment's layers, whichever way the file numbers them.

    model_layers    the model's own number of each MoE layer of the deployment
    num_shared      shared experts that sit in slots, with the ids after the routed ones

    A file may number by the model (rows of dense layers are then passed over) or count
    MoE layers from 0. Raises MisfitPlacement when its layers are neither, and InvalidTable
    when layers disagree on slots.
    """
    rows = dict(found.layers)
    if set(model_layers) <= set(rows):
        chosen = list(model_layers)
    elif set(rows) == set(range(len(model_layers))):
        chosen = list(range(len(model_layers)))
    else:
        raise MisfitPlacement(
            f"the file has layers {list(found.layer_ids)}; expected MoE layers 0 to "
            f"{len(model_layers) - 1}, or the model's layers {list(model_layers)}; nothing changed"
        )
    ranks = [[list(rank) for rank in rows[layer]] for layer in chosen]
    return placement_from_ranks(ranks, num_experts=num_experts, num_shared=num_shared)


def reshaped(placement: Placement, layout: SlotLayout) -> Placement:
    """Deal the same slots, in order, to ranks of another layout.

    Only the number of slots must agree; whether the outcome is sound (no expert twice on
    a rank) is for the rules to say. Raises MisfitPlacement with both numbers otherwise.
    """
    if placement.layout.num_slots != layout.num_slots:
        raise MisfitPlacement(
            f"the file has {placement.layout.num_slots} slots, the deployment "
            f"{layout.num_slots}; only a file with as many slots can be reshaped"
        )
    return Placement(
        np.array(placement.phy2log), placement.num_experts, layout, placement.num_shared
    )


def format_map(placement: Placement, model_layers: Sequence[int]) -> str:
    """Write a placement as a file's text, layers numbered by the model."""
    layout = placement.layout
    layers = [
        {
            "layer_id": model_layer,
            "device_count": layout.num_ranks,
            "device_list": [
                {"device_id": rank, "device_expert": row[layout.slots_of(rank)].tolist()}
                for rank in range(layout.num_ranks)
            ],
        }
        for model_layer, row in zip(model_layers, placement.phy2log, strict=True)
    ]
    return json.dumps({"moe_layer_count": len(layers), "layer_list": layers}, indent=4) + "\n"


def _layer(entry: Json, where: str) -> tuple[int, tuple[tuple[int, ...], ...]]:
    layer_id = _number(_member(entry, "layer_id", where), f"{where}.layer_id")
    devices = _array(_member(entry, "device_list", where), f"{where}.device_list")
    count = _number(_member(entry, "device_count", where), f"{where}.device_count")
    if count != len(devices):
        raise _wrong(f"{where}: device_count is {count}, but device_list has {len(devices)}")
    ranks: dict[int, tuple[int, ...]] = {}
    for at, device in enumerate(devices):
        place = f"{where}.device_list[{at}]"
        device_id = _number(_member(device, "device_id", place), f"{place}.device_id")
        experts = _array(_member(device, "device_expert", place), f"{place}.device_expert")
        if device_id in ranks:
            raise _wrong(f"{place}: device_id {device_id} occurs twice")
        ranks[device_id] = tuple(_number(e, f"{place}.device_expert", EMPTY) for e in experts)
    if not any(ranks.values()):
        raise _wrong(f"{where} has no slot on any device")
    if sorted(ranks) != list(range(len(ranks))):
        raise _wrong(f"{where}: device ids are {sorted(ranks)}; expected 0 to {len(ranks) - 1}")
    return layer_id, tuple(ranks[rank] for rank in range(len(ranks)))


def _json(text: str) -> Json:
    try:
        return cast("Json", read_json(text))
    except ValueError as error:
        raise _wrong(str(error)) from error


def _wrong(what: str) -> InvalidMapFile:
    return InvalidMapFile(f"{what}; nothing changed")


def _member(value: Json, key: str, where: str) -> Json:
    if not isinstance(value, dict):
        raise _wrong(f"{where} is {type(value).__name__}; expected an object")
    if key not in value:
        raise _wrong(f"{where} has no {key}")
    return value[key]


def _array(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise _wrong(f"{where} is {type(value).__name__}; expected an array")
    return value


def _number(value: Json, where: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(f"{where} holds {value!r}; expected a whole number")
    if not least <= value < 2**31:
        raise _wrong(f"{where} holds {value}; expected {least} to {2**31 - 1}")
    return value
