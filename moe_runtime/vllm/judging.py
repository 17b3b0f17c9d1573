"""What a device's family has not, of what a model and its layout ask of it."""

from collections.abc import Sequence

from moe_runtime.contracts.errors import Unsupported
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.experts.activations import is_limited
from moe_runtime.formats.capabilities import Asked, require
from moe_runtime.formats.packing import WeightFormat
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.families import Parts
from moe_runtime.vllm.formats import format_of
from moe_runtime.vllm.reading import Reading
from moe_runtime.vllm.seams import Runner
from moe_runtime.vllm.stack import Ranks

__all__ = ["require_on_device"]


def require_on_device(
    runners: Sequence[Runner], readings: Sequence[Reading], ranks: Ranks, parts: Parts
) -> None:
    """Raise CannotOwn, with every reason, unless the device computes all layers as they are."""
    by = ExchangeMode.ALL_GATHER if ranks.is_replicated else parts.exchanges_by
    for runner, reading in zip(runners, readings, strict=True):
        experts = runner.routed_experts
        asked = Asked(
            format=WeightFormat(format_of(experts) or WeightFormat.UNQUANTISED.value),
            dtype=experts.moe_config.in_dtype,
            mode=by.value,
            device=parts.kind,
            activation=type(reading.activation).__name__,
            limited=is_limited(reading.activation),
        )
        try:
            require(asked)
        except Unsupported as why:
            raise CannotOwn(f"MoE layer {runner.layer_name}", why.reasons) from why
