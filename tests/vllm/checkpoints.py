"""Checkpoints whose experts are quantised, as compressed-tensors writes them, and what they mean.

Axes    B output width   A input width
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.demo_vllm.models import NUM_EXPERTS, QWEN3, Weights, qwen3_weights, write
from moe_runtime.backends.codes import decode_e2m1, decode_e8m0, expand_blocks
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.formats.packing import Packing, WeightFormat, pack

EXPERTS = r"re:.*mlp\.experts\..*"
MATRICES = [
    f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj"
    for layer in range(QWEN3.layers)
    for expert in range(NUM_EXPERTS)
    for part in ("gate", "up", "down")
]


@dataclass(frozen=True)
class Stored:
    """One matrix in a checkpoint: its tensors by the end of their names, and its numbers."""

    tensors: dict[str, Tensor]
    means_BA: Tensor


def mxfp4(w_BA: Tensor) -> Stored:
    """float4 in blocks, two in a byte, with exponents alone as scales."""
    # Only the down matrix of what is packed is looked at: a matrix is packed by itself.
    dense = DenseWeights(torch.zeros(1, 2 * w_BA.shape[1], w_BA.shape[0]), w_BA[None])
    stacks = pack(dense, Packing(WeightFormat.W4A16_MXFP4), torch.float32).named()
    packed, scale = stacks["w2"][0], stacks["w2_scale"][0]
    numbers = decode_e2m1(packed, torch.float32)
    means = numbers * expand_blocks(decode_e8m0(scale, torch.float32), numbers.shape[1])
    return Stored({"weight_packed": packed, "weight_scale": scale}, means)


FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
INT4 = {**FLOAT4, "type": "int"}
FORMS: dict[str, tuple[Callable[[Tensor], Stored], Mapping[str, object], str]] = {
    "mxfp4": (mxfp4, FLOAT4, "mxfp4-pack-quantized"),
}


def write_quantised(folder: Path, form: str) -> Path:
    """A Qwen3-MoE whose experts are stored in a form, and read rows as they are."""
    store, weights, name = FORMS[form]
    tensors = qwen3_weights()
    for stem in MATRICES:
        stored = store(tensors.pop(f"{stem}.weight"))
        tensors |= {f"{stem}.{end}": tensor for end, tensor in stored.tensors.items()}
    return write(folder, quantised(weights, name), tensors)


def write_meaning(folder: Path, form: str) -> Path:
    """The same model with the numbers that its experts stand for, in float32."""
    store, _, _ = FORMS[form]
    tensors: Weights = qwen3_weights()
    for stem in MATRICES:
        tensors[f"{stem}.weight"] = store(tensors[f"{stem}.weight"]).means_BA
    return write(folder, QWEN3.config(), tensors)


def quantised(
    weights: Mapping[str, object], name: str, ignore: list[str] | None = None
) -> dict[str, object]:
    """Return the config.json of a Qwen3-MoE whose experts alone are quantised."""
    group = {"targets": [EXPERTS], "weights": {**weights, "dynamic": False}}
    told = {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ignore or [],
    }
    return {**QWEN3.config(), "quantization_config": told}
