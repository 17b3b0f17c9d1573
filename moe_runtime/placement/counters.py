"""How many tokens were sent to experts and received by slots.

Axes    H phases   L layers   S local slots   E routed experts   N ranks   G step kinds
        M shared experts that sit in slots

Counters only grow, so that a lost report loses nothing; the closing totals of
an epoch are a snapshot taken at its cutover. What is received is judged by the
rank that sent it: tokens of dummy, warm-up and profile steps and padding rows
are never load, also at a rank whose own step is a dummy one. All counters are
written and read on the step's thread.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.ids import NOT_SENT, LogicalIds
from moe_runtime.contracts.step import Phase, StepKind, StepView
from moe_runtime.contracts.torch_calls import to_array

__all__ = ["CounterSnapshot", "LayerCounts", "LoadCounters"]

Counts = npt.NDArray[np.int64]
_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class CounterSnapshot:
    """All totals at one moment, copied. Phases and kinds are indices of their enums."""

    received_HLS: Counts
    """Token rows that local slots computed, those that hold shared experts included."""
    sent_HLE: Counts
    """Token rows this rank's own tokens sent to each routed expert."""
    shared_HLM: Counts
    """Token rows this rank's own tokens sent to shared experts in slots: part of no other count
    of what was sent, since nothing chose them."""
    zero_HL: Counts
    """Pairs of this rank's own tokens that chose a zero expert: sent nowhere, part of no load."""
    tokens_H: Counts
    """This rank's own tokens in real steps."""
    steps_G: Counts
    """Steps this rank took, by kind."""
    padding_rows: int
    """Rows left out of every count above."""
    overflow_rows: int
    """Rows for which a fused exchange had no place at this rank; computed another way, and part of
    the load like any other."""
    expert_seconds: float
    """Time spent in the experts, in real steps."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerCounts:
    """Live totals of one layer."""

    received_HS: Tensor
    sent_HE: Tensor
    shared_HM: Tensor
    zero_H: Tensor


class LoadCounters:
    """The totals of one rank.

    home    where its tokens are computed, and its totals kept
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_experts: int,
        num_shared: int = 0,
        home: torch.device = _HOST,
    ) -> None:
        phases = len(Phase)

        def none(*shape: int) -> Tensor:
            return torch.zeros((phases, num_layers, *shape), dtype=torch.int64, device=home)

        self._num_experts = num_experts
        self._received_HLS = none(num_slots)
        self._sent_HLE = none(num_experts)
        self._shared_HLM = none(num_shared)
        self._zero_HL = none()
        self._tokens_H = [0] * phases
        self._steps_G = [0] * len(StepKind)
        self._padding_rows = 0
        self._overflow_rows = 0
        self._expert_seconds = 0.0

    def record_step(self, view: StepView, *, padding_rows: int) -> None:
        """Count a step that this rank begins."""
        self._steps_G[view.own.kind] += 1
        self._padding_rows += padding_rows
        if view.own.kind is StepKind.REAL:
            self._tokens_H[view.own.phase] += view.own_rows

    def record_layer(
        self, layer: int, view: StepView, *, sent: LogicalIds, received_NS: Tensor
    ) -> None:
        """Count what one layer sent and received in this step.

        sent           experts that this rank's own tokens go to, shared ones from E on
        received_NS    [N, S]  rows that each rank sent to each local slot
        """
        counted_HN = view.load_mask().to(received_NS.device)
        # No product of matrices: devices multiply none of int64.
        self._received_HLS[:, layer] += (counted_HN[:, :, None] * received_NS).sum(dim=1)
        if view.own.kind is StepKind.REAL:
            shifted = sent.ids_TK.reshape(-1) - NOT_SENT
            num_routed, phase = self._num_experts, view.own.phase
            num_shared = self._shared_HLM.shape[2]
            counts = torch.bincount(shifted, minlength=1 + num_routed + num_shared)
            self._zero_HL[phase, layer] += counts[0]
            self._sent_HLE[phase, layer] += counts[1 : 1 + num_routed]
            self._shared_HLM[phase, layer] += counts[1 + num_routed :]

    def of_layer(self, layer: int) -> LayerCounts:
        """Return live views of one layer's totals, for a traced one, which counts in place."""
        return LayerCounts(
            self._received_HLS[:, layer],
            self._sent_HLE[:, layer],
            self._shared_HLM[:, layer],
            self._zero_HL[:, layer],
        )

    def record_expert_time(self, view: StepView, *, seconds: float) -> None:
        """Count time spent in the experts."""
        if view.own.kind is StepKind.REAL:
            self._expert_seconds += seconds

    def record_overflow(self, view: StepView, *, rows: int) -> None:
        """Count rows that a fused exchange had no place for here, unless no rank's are load."""
        if view.load_mask().any():
            self._overflow_rows += rows

    def snapshot(self) -> CounterSnapshot:
        """Copy all totals."""
        return CounterSnapshot(
            received_HLS=to_array(self._received_HLS),
            sent_HLE=to_array(self._sent_HLE),
            shared_HLM=to_array(self._shared_HLM),
            zero_HL=to_array(self._zero_HL),
            tokens_H=np.array(self._tokens_H, dtype=np.int64),
            steps_G=np.array(self._steps_G, dtype=np.int64),
            padding_rows=self._padding_rows,
            overflow_rows=self._overflow_rows,
            expert_seconds=self._expert_seconds,
        )
