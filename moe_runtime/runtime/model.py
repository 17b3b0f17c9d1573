"""What a model is to the runtime: its shape, and where its weights come from.

Axes    L layers   E experts   M shared experts in slots   D model width
        Z width of the routed part   I expert width   F = 2 I
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moe_runtime.contracts.errors import ImpossibleRouting, ShapeMismatch
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.experts.activations import Activation
from moe_runtime.formats.packing import Packing
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.routing.kinds import CustomRouting, HashRouting, OnInputRouting, Routing

__all__ = [
    "IN_SLOTS",
    "UNPACKED",
    "ExpertBias",
    "LatentShape",
    "Model",
    "SharedInSlots",
    "StackShape",
]

UNPACKED = Packing()
"""Weights as the model brings them."""


@dataclass(frozen=True, slots=True)
class SharedInSlots:
    """Mixed placement: shared experts have the ids from E on, and each token goes to every one.

    They are stored as routed experts are.
    """


IN_SLOTS = SharedInSlots()


@dataclass(frozen=True, slots=True)
class LatentShape:
    """The routed part works in a latent (Kimi K3)."""

    width: int
    normed: bool = True
    """Whether the sum over experts is RMS-normalised before it is projected up."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertBias:
    """What one expert adds after gate and up, and after down, before the token's weight."""

    gate_up_F: Tensor
    down_Z: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StackShape:
    """A stack of equal MoE layers.

    Raises ShapeMismatch for sizes that no stack has, and ImpossibleRouting for a correction where
    nothing is chosen by scores, or shared experts in slots where a slot cannot hold them.
    """

    num_layers: int
    width: int
    """D."""
    intermediate: int
    """I, of each routed and each shared expert."""
    selector: Routing
    activation: Activation
    latent: LatentShape | None = None
    """None: experts work at the model's own width."""
    num_shared: int = 0
    shared_packing: Packing | SharedInSlots = UNPACKED
    """How shared experts are stored beside the slots of each rank, whatever routed ones are; or
    that they sit in slots."""
    corrected: bool = False
    """Whether the selector has a correction bias."""
    biased: bool = False
    """Whether routed experts add a bias after each linear."""

    def __post_init__(self) -> None:
        sizes = (self.num_layers, self.width, self.intermediate, self.routed_width)
        if min(sizes) < 1 or self.num_shared < 0:
            raise ShapeMismatch(
                "a stack (layers, width, intermediate, routed width, shared experts)",
                got=(*sizes, self.num_shared),
                expected="1 or more each, shared experts 0 or more",
            )
        by = self.selector.by if isinstance(self.selector, OnInputRouting) else self.selector
        if self.corrected and isinstance(by, HashRouting | CustomRouting):
            raise ImpossibleRouting(
                f"a correction has no part in {type(by).__name__}, which does not choose by scores"
            )
        if isinstance(self.shared_packing, SharedInSlots) and (
            reasons := tuple(_against_mixing(self))
        ):
            raise ImpossibleRouting(f"shared experts cannot sit in slots: {'; '.join(reasons)}")

    @property
    def num_experts(self) -> int:
        """E."""
        return self.selector.num_experts

    @property
    def num_shared_in_slots(self) -> int:
        """M, shared experts that sit in slots."""
        return self.num_shared if isinstance(self.shared_packing, SharedInSlots) else 0

    @property
    def num_pairs(self) -> int:
        """Slots that each token is sent to."""
        return self.selector.top_k + self.num_shared_in_slots

    @property
    def num_candidates(self) -> int:
        """X, columns of the router's logits: E, and any zero experts."""
        return self.selector.num_candidates

    @property
    def routed_width(self) -> int:
        """Z."""
        return self.width if self.latent is None else self.latent.width


def _against_mixing(shape: StackShape) -> Iterator[str]:
    if not isinstance(shape.shared_packing, SharedInSlots):
        return
    if not shape.num_shared:
        yield "there are no shared experts"
    if shape.latent is not None:
        yield "they read the model's full width, and slots hold experts of a latent"
    if isinstance(shape.selector, OnInputRouting):
        yield "a row carries its one expert's weight, which no other expert may read"


class Model(Protocol):
    """Where weights come from; every call with equal arguments returns equal weights.

    What is computed from them, for a token x of width D, layer by layer (@ over columns):

        h       x / sqrt(mean(x * x) + 1e-6), an RMS norm without a weight, in float32 or better
        logits  gate_XD @ h, in the model's own dtype; scores are computed from them in float32
                or better
        z       h, or down_ZD @ h where experts work in a latent
        y       the sum over the token's experts of weight * expert(z), and weight * z for each
                zero expert; expert(weight * z) with `OnInputRouting`
        r       y, or up_DZ @ y in a latent, of (norm_Z * RMS norm of y) where that is normed
        x       x + r + the sum over shared experts of expert(h) * sigmoid(gate_1D @ h), of
                expert(h) alone for one without a gate

        expert(z)  w2 @ activation(w13 @ z + gate_up_F) + down_Z, without biases where there are
                   none; shared experts have none

    Letters that end a tensor's name are its axes: X experts to choose from (routed, then zero
    ones), D model width, Z width of the routed part (D without a latent), I expert width, F = 2 I
    gate and up, S slots (here one), V token ids, K experts of a token.

    A caller whose model norms its rows with a weight multiplies the columns of what reads h by it.

    Tensors are of the dtype that is asked for, finite, and in any memory; they are copied.
    A `HashTable` is of integers, a correction of any float dtype.
    """

    @property
    def shape(self) -> StackShape:
        """The stack that the weights are for."""
        ...

    def layer(self, layer: int, dtype: torch.dtype) -> LayerWeights:
        """Return what a layer has beside its routed experts, shared experts in slots included."""
        ...

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        """Return one logical expert, as stacks of one slot."""
        ...

    def bias(self, layer: int, expert: int, dtype: torch.dtype) -> ExpertBias:
        """Return the biases of one logical expert; asked only of a biased stack."""
        ...
