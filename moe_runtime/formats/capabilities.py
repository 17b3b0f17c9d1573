"""What each kind of device can compute: asked when a model is loaded, never worked out later.

A combination is allowed unless a rule speaks against it, and all rules that do are named at
once, so that nothing a model asks for is ever dropped in silence. Rules for Ascend devices are
drawn from the operators' schemas and sources (torch_npu 2.13, vllm-ascend); this project never
ran on one. On `cpu` everything that a format can express is allowed: it is the specification.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import torch

from moe_runtime.contracts.errors import Unsupported
from moe_runtime.contracts.rows import RowForm
from moe_runtime.formats.packing import WeightFormat

__all__ = ["DTYPES", "Asked", "DeviceKind", "refusals", "require"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""In which a model may compute, and in which tokens may come."""
_FUSED = "fused_mc2"
_PLAIN_SWIGLU = "SwiGLU"
_INTEGERS = {WeightFormat.W8A8, WeightFormat.W4A8}
_HALVES = {WeightFormat.W8A8, WeightFormat.W4A16}
"""Quantised formats whose products operators write as float16 too."""
_IN_OWN_LAYOUT = {WeightFormat.W4A8_MXFP, WeightFormat.W4A16_MXFP4}
_ANYWHERE = {*_INTEGERS, WeightFormat.UNQUANTISED, WeightFormat.W4A16}


class DeviceKind(Enum):
    """What experts are computed on."""

    CPU = "cpu"
    A2 = "ascend-a2"
    A3 = "ascend-a3"
    A5 = "ascend-a5"
    P310 = "ascend-310p"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a model and its operator ask of a device."""

    format: WeightFormat
    dtype: torch.dtype
    """The model's."""
    mode: str
    """The exchange mode, by name."""
    device: DeviceKind
    activation: str
    """The name of the activation's type."""
    limited: bool = False
    """Whether the activation clamps."""
    biased: bool = False
    lora: bool = False


def refusals(asked: Asked) -> tuple[str, ...]:
    """Return every rule's sentence against it; none if it is allowed."""
    return tuple(sentence for rule in _RULES for sentence in rule(asked))


def require(asked: Asked, *, also: tuple[str, ...] = ()) -> None:
    """Raise Unsupported, with every reason, unless it is allowed.

    also    reasons of the backend at hand, which may not have all that its kind of device could
    """
    if against := (*refusals(asked), *also):
        raise Unsupported(
            f"{asked.format.value} weights in {asked.mode} on {asked.device.value} "
            f"({asked.activation}, {asked.dtype})",
            reasons=against,
        )


def _dtype(asked: Asked) -> Iterator[str]:
    if asked.dtype not in DTYPES:
        yield f"{asked.dtype} is no dtype of a model, expected one of {DTYPES}"
    if asked.device is not DeviceKind.CPU and asked.dtype is torch.float64:
        yield "no Ascend device multiplies float64"
    quantised, on_ascend = (
        asked.format is not WeightFormat.UNQUANTISED,
        asked.device is not DeviceKind.CPU,
    )
    if on_ascend and quantised and asked.dtype is torch.float32:
        yield "grouped operators write quantised products as bfloat16 or float16 only"
    if on_ascend and quantised and asked.dtype is torch.float16 and asked.format not in _HALVES:
        yield f"grouped operators write {asked.format.value} products as bfloat16 only"
    if asked.device is DeviceKind.P310 and asked.dtype is not torch.float16:
        yield "310P computes in float16 only"


def _device_reads_format(asked: Asked) -> Iterator[str]:
    match asked.device:
        case DeviceKind.A2 | DeviceKind.A3:
            if asked.format not in _ANYWHERE:
                yield "float8 and float4 need an A5"
        case DeviceKind.P310:
            if asked.format not in {WeightFormat.UNQUANTISED, WeightFormat.W8A8}:
                yield "310P reads unquantised and W8A8 weights only"
        case DeviceKind.CPU | DeviceKind.A5:
            pass


def _device_has_mode(asked: Asked) -> Iterator[str]:
    if asked.device is DeviceKind.P310 and asked.mode != "all_gather":
        yield "310P has all_gather only"
    if asked.mode == _FUSED and asked.device in {DeviceKind.A2, DeviceKind.A5}:
        yield "fused MC2 is an operator of A3 only"


def _fused_operator(asked: Asked) -> Iterator[str]:
    """MegaMoe and dispatch_ffn_combine compute one activation, and have no place for the rest."""
    if asked.mode != _FUSED or asked.device is DeviceKind.CPU:
        return
    if asked.format not in {*_INTEGERS, WeightFormat.UNQUANTISED}:
        yield "fused MC2 reads W8A8, W4A8 and unquantised weights only"
    if asked.dtype is torch.float32:
        yield "fused MC2 takes bfloat16 and float16 rows only"
    if asked.activation != _PLAIN_SWIGLU:
        yield f"fused MC2 computes SwiGLU, not {asked.activation}"
    if asked.limited and asked.format is WeightFormat.UNQUANTISED:
        yield "fused MC2 drops the limit of SwiGLU for unquantised weights"
    if asked.biased:
        yield "fused MC2 has no place for experts' biases"


def _old_device_activation(asked: Asked) -> Iterator[str]:
    if asked.device is DeviceKind.P310 and (asked.activation != _PLAIN_SWIGLU or asked.limited):
        yield "310P computes SwiGLU without a limit only"


def _lora(asked: Asked) -> Iterator[str]:
    if not asked.lora:
        return
    if asked.format.rows is not RowForm.PLAIN:
        yield "LoRA reads rows as they are, and experts of this format read quantised ones"
    if asked.mode == _FUSED:
        yield "fused MC2 has no place between its linears for LoRA"
    if asked.device is not DeviceKind.CPU and asked.mode == "mc2":
        yield "MC2's operators carry no number of an adapter with a row"


def _not_built(asked: Asked) -> Iterator[str]:
    """What operators could do, and the Ascend backend has no call for."""
    if asked.device is DeviceKind.CPU:
        return
    if asked.mode == _FUSED and asked.format is WeightFormat.W4A8:
        yield "fused MC2 of W4A8 is not built: how its operator groups scales has no text"
    if asked.format in _IN_OWN_LAYOUT:
        yield (
            f"{asked.format.value} weights are not built: operators read them in the device's own "
            "layout only (npu_format_cast)"
        )
    if asked.device is DeviceKind.P310 and asked.format is WeightFormat.W8A8:
        yield "W8A8 of a 310P has an operator of its own, which is not built"


_RULES: tuple[Callable[[Asked], Iterator[str]], ...] = (
    _dtype,
    _device_reads_format,
    _device_has_mode,
    _fused_operator,
    _old_device_activation,
    _lora,
    _not_built,
)
