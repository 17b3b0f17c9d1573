"""The ids of one step, gathered layer by layer, and where they go.

Axes    T tokens   L layers   K experts per token
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moe_runtime.capture.ids import id_dtype, narrow, refuse_impossible
from moe_runtime.contracts.exchange_errors import CaptureUnavailable
from moe_runtime.contracts.ids import LogicalIds

__all__ = ["NO_CAPTURE", "CaptureSink", "Captured", "NoCapture", "Recorder", "StepRecorder"]


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """What routers chose for the tokens of one step, in order of the batch, without padding."""

    experts_TLK: Tensor
    """Logical ids in the narrowest integers that hold them all; zero experts come after E."""


class CaptureSink(Protocol):
    """Whoever asked for the ids."""

    def take(self, captured: Captured) -> None:
        """Take the ids of a real step; called on the step's thread."""
        ...


class Recorder(Protocol):
    """What a layer tells its choice to."""

    def record(self, layer: int, experts: LogicalIds) -> None:
        """Note what the router chose, before any table is applied or balance forced."""
        ...


@dataclass(frozen=True, slots=True)
class NoCapture:
    """Nobody asked."""

    def record(self, layer: int, experts: LogicalIds) -> None:
        """Let it pass."""


NO_CAPTURE = NoCapture()


class StepRecorder:
    """Meets `Recorder` for one step."""

    def __init__(self, *, num_layers: int, num_experts: int) -> None:
        self._num_experts = num_experts
        self._by_layer: list[Tensor | None] = [None] * num_layers

    def record(self, layer: int, experts: LogicalIds) -> None:
        """Note one layer; raises CaptureUnavailable if it was noted already."""
        if self._by_layer[layer] is not None:
            raise CaptureUnavailable(f"layer {layer} was captured twice in one step")
        self._by_layer[layer] = experts.ids_TK

    def ids(self) -> Tensor:
        """Return [T, L, K]; raises CaptureUnavailable if a layer is missing or cannot be."""
        missing = [layer for layer, ids in enumerate(self._by_layer) if ids is None]
        if missing:
            raise CaptureUnavailable(f"layers {missing} were never captured in this step")
        stacked = torch.stack([ids for ids in self._by_layer if ids is not None], dim=1)
        checked = refuse_impossible(stacked, num_experts=self._num_experts)
        return narrow(checked, id_dtype(self._num_experts))
