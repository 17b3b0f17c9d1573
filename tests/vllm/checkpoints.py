"""Checkpoints whose experts are quantised, as compressed-tensors writes them, and what they mean.

Axes    B output width   A input width   G groups of the input
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

__all__ = [
    "FORMS",
    "INT4",
    "IN_ANY_RUN",
    "MEANING",
    "Form",
    "quantised",
    "rows_are_quantised",
    "write_meaning",
    "write_quantised",
]

GROUP = 32
EXPERTS = r"re:.*mlp\.experts\..*"
MATRICES = [
    f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj"
    for layer in range(QWEN3.layers)
    for expert in range(NUM_EXPERTS)
    for part in ("gate", "up", "down")
]
MEANING = "-meaning"
"""End of the name of a folder that has, as numbers, what the codes in another one stand for."""
Args = Mapping[str, object]
"""QuantizationArgs of compressed-tensors."""


@dataclass(frozen=True)
class Stored:
    """One matrix in a checkpoint: its tensors by the end of their names, and its numbers."""

    tensors: dict[str, Tensor]
    means_BA: Tensor


def packed(w_BA: Tensor, form: WeightFormat) -> tuple[Tensor, Tensor]:
    """Return the values and the scales of one matrix in a format of the runtime."""
    # Only the down matrix of what is packed is looked at: a matrix is packed by itself.
    dense = DenseWeights(torch.zeros(1, 2 * w_BA.shape[1], w_BA.shape[0]), w_BA[None])
    stacks = pack(dense, Packing(form), torch.float32).named()
    return stacks["w2"][0], stacks["w2_scale"][0]


def mxfp4(w_BA: Tensor) -> Stored:
    """float4 in blocks, two in a byte, with exponents alone as scales."""
    values, scale = packed(w_BA, WeightFormat.W4A16_MXFP4)
    numbers = decode_e2m1(values, torch.float32)
    means = numbers * expand_blocks(decode_e8m0(scale, torch.float32), numbers.shape[1])
    return Stored({"weight_packed": values, "weight_scale": scale}, means)


def mxfp8(w_BA: Tensor) -> Stored:
    """float8 in blocks, with exponents alone as scales."""
    values, scale = packed(w_BA, WeightFormat.W8A8_MXFP8)
    numbers = values.float()
    means = numbers * expand_blocks(decode_e8m0(scale, torch.float32), numbers.shape[1])
    return Stored({"weight": values, "weight_scale": scale}, means)


def by_channel(w_BA: Tensor, form: WeightFormat) -> Stored:
    """int8 or float8, one scale for each output."""
    values, scale_B = packed(w_BA, form)
    scale_B1 = scale_B[:, None]
    return Stored({"weight": values, "weight_scale": scale_B1}, values.float() * scale_B1)


def int4(w_BA: Tensor) -> Stored:
    """int4 by groups, eight inputs in a word, each with 8 added."""
    rows = w_BA.shape[0]
    groups = w_BA.reshape(rows, -1, GROUP)
    scale_BG = groups.abs().amax(dim=2) / 7
    numbers = torch.round(groups / scale_BG[:, :, None]).to(torch.int64).reshape(rows, -1)
    words = ((numbers + 8).reshape(rows, -1, 8) << (4 * torch.arange(8))).sum(dim=2)
    packed = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    tensors = {
        "weight_packed": packed,
        "weight_scale": scale_BG,
        "weight_shape": torch.tensor(w_BA.shape),
    }
    return Stored(tensors, numbers * scale_BG.repeat_interleave(GROUP, dim=1))


@dataclass(frozen=True)
class Form:
    """One way of storing experts."""

    store: Callable[[Tensor], Stored]
    name: str
    """What compressed-tensors calls it."""
    weights: Args
    rows: Args | None = None
    """How experts read rows; None: as they are."""

    @property
    def words(self) -> tuple[str, str]:
        """How weights are stored and rows are read, as the plugin says it."""
        return _words(self.weights), "as they are" if self.rows is None else _words(self.rows)


def _words(args: Args) -> str:
    spread = f"group of {args['group_size']}" if "group_size" in args else args["strategy"]
    return f"{args['type']}{args['num_bits']} by {spread}"


BY_GROUP = {"strategy": "group", "group_size": GROUP, "symmetric": True}
FLOAT4 = {"num_bits": 4, "type": "float", **BY_GROUP}
FLOAT8 = {"num_bits": 8, "type": "float", **BY_GROUP, "scale_dtype": "torch.uint8"}
INT4 = {"num_bits": 4, "type": "int", **BY_GROUP}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
PLAIN_FLOAT8 = {**INT8, "type": "float"}
ROWS_INT8 = {**INT8, "strategy": "token", "dynamic": True}
ROWS_FLOAT8 = {**PLAIN_FLOAT8, "strategy": "token", "dynamic": True}
FORMS = {
    "mxfp4": Form(mxfp4, "mxfp4-pack-quantized", FLOAT4),
    "int4": Form(int4, "pack-quantized", INT4),
    "w8a8": Form(lambda w: by_channel(w, WeightFormat.W8A8), "int-quantized", INT8, ROWS_INT8),
    "w8a8-fp8": Form(
        lambda w: by_channel(w, WeightFormat.W8A8_FP8),
        "float-quantized",
        PLAIN_FLOAT8,
        ROWS_FLOAT8,
    ),
    "w8a8-mxfp8": Form(mxfp8, "mxfp8-quantized", FLOAT8, {**FLOAT8, "dynamic": True}),
    "w4a8-mxfp": Form(mxfp4, "mxfp4-pack-quantized", FLOAT4, {**FLOAT8, "dynamic": True}),
    "w4a4-mxfp4": Form(mxfp4, "mxfp4-pack-quantized", FLOAT4, {**FLOAT4, "dynamic": True}),
}


IN_ANY_RUN = ("mxfp4", "int4", "w8a8")
"""Forms that `make test-vllm` serves; the others are slow tests."""


def rows_are_quantised(name: str) -> bool:
    """Whether a model is one of a form whose experts read rows otherwise than as they are."""
    return name in FORMS and FORMS[name].rows is not None


def write_quantised(folder: Path, form: str) -> Path:
    """A Qwen3-MoE whose experts are stored in a form."""
    told = FORMS[form]
    tensors = qwen3_weights()
    for stem in MATRICES:
        stored = told.store(tensors.pop(f"{stem}.weight"))
        tensors |= {f"{stem}.{end}": tensor for end, tensor in stored.tensors.items()}
    return write(folder, quantised(told.weights, told.name, rows=told.rows), tensors)


def write_meaning(folder: Path, form: str) -> Path:
    """The same model with the numbers that its experts stand for, in float32."""
    tensors: Weights = qwen3_weights()
    for stem in MATRICES:
        tensors[f"{stem}.weight"] = FORMS[form].store(tensors[f"{stem}.weight"]).means_BA
    return write(folder, QWEN3.config(), tensors)


def quantised(
    weights: Args, name: str, ignore: list[str] | None = None, rows: Args | None = None
) -> dict[str, object]:
    """Return the config.json of a Qwen3-MoE whose experts alone are quantised."""
    group = {"targets": [EXPERTS], "weights": {**weights, "dynamic": False}}
    told = {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {
            "group_0": {**group, **({} if rows is None else {"input_activations": rows})}
        },
        "ignore": ignore or [],
    }
    return {**QWEN3.config(), "quantization_config": told}
