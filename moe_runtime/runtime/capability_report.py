"""The capability table, for people and for programs: `python -m moe_runtime capabilities`."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.experts.activations import (
    GELU,
    ClippedSwiGLU,
    GELUTanh,
    SiTU,
    SwiGLU,
    SwiGLUOAI,
    SwiGLUStep,
)
from moe_runtime.formats.capabilities import Asked, DeviceKind, refusals
from moe_runtime.formats.packing import WeightFormat

__all__ = ["main", "table"]

ACTIVATIONS = (SwiGLU, ClippedSwiGLU, SwiGLUOAI, SwiGLUStep, GELU, GELUTanh, SiTU)
Entry: TypeAlias = dict[str, str | bool | list[str]]


def table() -> list[Entry]:
    """Return an entry for each device, mode, format and thing a model may ask for beside."""
    return [
        _entry(asked, what)
        for device in DeviceKind
        for mode in ExchangeMode
        for weights in WeightFormat
        for asked, what in _variants(device, mode, weights)
    ]


def _variants(
    device: DeviceKind, mode: ExchangeMode, weights: WeightFormat
) -> Iterator[tuple[Asked, str]]:
    plain = Asked(
        format=weights,
        dtype=torch.float16 if device is DeviceKind.P310 else torch.bfloat16,
        mode=mode.value,
        device=device,
        activation=SwiGLU.__name__,
    )
    for activation in ACTIVATIONS:
        name = activation.__name__
        yield replace(plain, activation=name), name
    yield replace(plain, limited=True), "SwiGLU with a limit"
    yield replace(plain, biased=True), "biases"
    yield replace(plain, lora=True), "LoRA"
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield replace(plain, dtype=dtype), str(dtype).removeprefix("torch.")


def _entry(asked: Asked, what: str) -> Entry:
    reasons = refusals(asked)
    return {
        "device": asked.device.value,
        "mode": asked.mode,
        "format": asked.format.value,
        "rows": asked.format.rows.value,
        "what": what,
        "allowed": not reasons,
        "reasons": list(reasons),
    }


def _text(entries: Sequence[Entry]) -> Iterator[str]:
    yield f"{'device':<12} {'mode':<11} {'format':<12} {'rows':<6} refused"
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        key = tuple(str(entry[name]) for name in ("device", "mode", "format", "rows"))
        groups.setdefault(key, []).append(entry)
    for (device, mode, weights, rows), asked in groups.items():
        refused = [entry for entry in asked if not entry["allowed"]]
        if not refused:
            told = "nothing"
        elif len(refused) == len(asked):
            told = f"all: {_reasons(refused[0])}"
        else:
            told = "; ".join(f"{entry['what']}: {_reasons(entry)}" for entry in refused)
        yield f"{device:<12} {mode:<11} {weights:<12} {rows:<6} {told}"
    yield "Checked on cpu. The Ascend rows follow the operators' schemas and were never run."
    yield "Fused MC2 on an A3 is dispatch_ffn_combine of _C_ascend, where vllm-ascend brought it."
    yield (
        "Never called: MegaMoe, which has no schema that a call could be held to, and "
        "dispatch_gmm_combine_decode, whose weights are in an order that no text tells."
    )


def _reasons(entry: Entry) -> str:
    reasons = entry["reasons"]
    assert isinstance(reasons, list)
    return ", ".join(reasons)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m moe_runtime", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    capabilities = verbs.add_parser("capabilities", help="what each device can compute")
    capabilities.add_argument("--json", action="store_true", help="one entry for each combination")
    given = parser.parse_args(arguments)
    entries = table()
    if given.json:
        print(json.dumps(entries, indent=1))
    else:
        print("\n".join(_text(entries)))
    return 0
