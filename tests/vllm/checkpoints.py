"""Checkpoints whose experts are quantised, as compressed-tensors writes them, and what they mean.

Axes    S experts   B output width   A input width
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.demo_vllm.models import NUM_EXPERTS, QWEN3, Weights, qwen3_weights, write
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.formats.packing import Packing, WeightFormat, dense_of, pack

MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
INT4_SKEWED = {**MXFP4, "type": "int", "symmetric": False}
F32 = torch.float32
EXPERTS = r"re:.*mlp\.experts\..*"


def quantised(
    weights: Mapping[str, object], form: str, ignore: list[str] | None = None
) -> dict[str, object]:
    """Return the config.json of a Qwen3-MoE whose experts alone are quantised."""
    group = {"targets": [EXPERTS], "weights": {**weights, "dynamic": False}}
    told = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ignore or [],
    }
    return {**QWEN3.config(), "quantization_config": told}


def write_mxfp4(folder: Path) -> Path:
    """A Qwen3-MoE with MXFP4 experts, whose rows are read as they are."""
    weights = qwen3_weights()
    for stem in _experts():
        for name, tensor in _packed(weights, stem).items():
            weights[name] = tensor
    return write(folder, quantised(MXFP4, "mxfp4-pack-quantized"), weights)


def write_what_mxfp4_means(folder: Path) -> Path:
    """The same model with the numbers that its MXFP4 stands for, in float32."""
    weights = qwen3_weights()
    for stem in _experts():
        dense = dense_of(pack(_dense(weights, stem), Packing(WeightFormat.W4A16_MXFP4), F32))
        gate, up = dense.w13_SFZ[0].float().chunk(2)
        for part, matrix in (("gate", gate), ("up", up), ("down", dense.w2_SZI[0].float())):
            weights[f"{stem}.{part}_proj.weight"] = matrix
    return write(folder, QWEN3.config(), weights)


def _experts() -> list[str]:
    layers = range(QWEN3.layers)
    return [f"model.layers.{i}.mlp.experts.{e}" for i in layers for e in range(NUM_EXPERTS)]


def _dense(weights: Weights, stem: str) -> DenseWeights:
    gate, up, down = (weights[f"{stem}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return DenseWeights(torch.cat((gate, up))[None], down[None])


def _packed(weights: Weights, stem: str) -> dict[str, Tensor]:
    """Take an expert's matrices out of a checkpoint; return them packed."""
    stacks = pack(_dense(weights, stem), Packing(WeightFormat.W4A16_MXFP4), F32).named()
    found: dict[str, Tensor] = {}
    for part in ("gate", "up", "down"):
        del weights[f"{stem}.{part}_proj.weight"]
        name = "w2" if part == "down" else "w13"
        for kind, stack in (("packed", stacks[name]), ("scale", stacks[f"{name}_scale"])):
            halves = (stack[0], stack[0]) if part == "down" else stack[0].chunk(2)
            found[f"{stem}.{part}_proj.weight_{kind}"] = halves[part == "up"]
    return found
