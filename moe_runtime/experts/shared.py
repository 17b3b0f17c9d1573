"""Experts that every token passes: dense, beside the routed ones, in any format.

Axes    T tokens   D model width

They read the hidden state of the model, also where routed experts work in a latent. The gate of
an expert, where a model has one, is applied in every format.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.timeline import Moment, Timeline
from moe_runtime.contracts.weights import PlainExpertWeights
from moe_runtime.experts.activations import Activation
from moe_runtime.experts.mlp import activated

__all__ = ["UNGATED", "ExpertGate", "SharedExpert", "Ungated", "compute_shared"]


@dataclass(frozen=True, slots=True)
class Ungated:
    """The expert counts for every token alike."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertGate:
    """The expert counts for a token as much as the sigmoid of one number says."""

    gate_1D: Tensor


UNGATED = Ungated()


@dataclass(frozen=True, slots=True, eq=False)
class SharedExpert:
    """An expert that every token passes, on its own rank; it has no slot and is never load.

    Raises ShapeMismatch unless the weights are those of one expert.
    """

    weights: PlainExpertWeights
    """Stacks of one slot."""
    gate: Ungated | ExpertGate = UNGATED

    def __post_init__(self) -> None:
        for name, stack in self.weights.named().items():
            if stack.shape[0] != 1:
                raise ShapeMismatch(
                    f"{name} of a shared expert", got=stack.shape, expected="(1, ...)"
                )


def compute_shared(
    x_TD: Tensor,
    expert: SharedExpert,
    *,
    activation: Activation,
    backend: Backend,
    timeline: Timeline,
) -> Tensor:
    """Run every token through one expert: [T, D], in four steps that each wait for a moment.

    quantise                  before tokens are routed
    gate and up               before rows are dispatched
    activate and quantise     before routed experts project down
    down, and the gate        before results are combined
    """
    weights = expert.weights
    all_rows = GroupCounts(torch.tensor([x_TD.shape[0]], device=x_TD.device))
    timeline.wait(Moment.ROUTED)
    rows = backend.quantise(x_TD, weights.rows)
    timeline.wait(Moment.DISPATCH)
    gate_up_TF = backend.grouped_linear(rows, weights.w13, all_rows)
    timeline.wait(Moment.DOWN)
    hidden = activated(activation, gate_up_TF, weights.rows, all_rows, backend=backend)
    timeline.wait(Moment.COMBINE)
    y_TD = backend.grouped_linear(hidden, weights.w2, all_rows)
    match expert.gate:
        case Ungated():
            return y_TD
        case ExpertGate(gate_1D):
            return y_TD * torch.sigmoid(x_TD @ gate_1D.t())
