"""What a layer is given, how it computes, and what of a rank changes between steps.

Axes    T rows of the batch   D model width   X experts to choose from
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from moe_runtime.backends.protocol import Backend
from moe_runtime.contracts.adapters import NO_ADAPTERS, ExpertAdapters, NoAdapters
from moe_runtime.contracts.timeline import InOrder, Timeline
from moe_runtime.contracts.tokens import NoTokenIds, TokenIds
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.experts.activations import Activation
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.placement.maps import DispatchTables
from moe_runtime.placement.slots import ExpertSlots
from moe_runtime.routing.kinds import Routing

__all__ = ["LayerAdapters", "LayerInput", "LayerMaths", "RankState"]


@dataclass(frozen=True, slots=True, eq=False)
class LayerAdapters:
    """The adapters of one layer, and which of them each row of the batch uses."""

    ids_T: Tensor
    experts: ExpertAdapters


@dataclass(frozen=True, slots=True, eq=False)
class LayerInput:
    """What a layer is given."""

    x_TD: Tensor
    logits_TX: Tensor
    """The router's logits: from the layer's own gate, or from outside."""
    real_T: Tensor
    """bool [T], false for padding rows."""
    token_ids: NoTokenIds | TokenIds
    """Of all rows of the batch, padding included."""
    adapters: NoAdapters | LayerAdapters = NO_ADAPTERS


@dataclass(frozen=True, slots=True)
class LayerMaths:
    """How a layer computes."""

    routing: Routing
    activation: Activation
    backend: Backend
    clock: Callable[[], float]
    """Seconds, for the time spent in experts."""
    timeline: Callable[[], Timeline] = InOrder
    """Makes the order of one layer's work: a device with streams has its own."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What changes between steps on one rank: the only state there is."""

    slots: ExpertSlots[ExpertWeights]
    tables: DispatchTables
    counters: LoadCounters
