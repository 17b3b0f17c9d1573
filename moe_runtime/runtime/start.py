"""What one rank starts with, and whether it fits the model and the group.

Axes    L layers   S local slots   E routed experts   J rows of a table   M shared experts in slots
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.torch_calls import is_whole
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.exchange.peers import Peers
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.placement.slots import EMPTY
from moe_runtime.runtime.device import CPU, Device
from moe_runtime.runtime.model import StackShape

__all__ = ["FROM_MODEL", "FromModel", "KeptRows", "Start", "check_start"]


@dataclass(frozen=True, slots=True)
class FromModel:
    """Slots are made, and filled from the model."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Slots are there, and hold by name and bytes what they are to hold."""

    layers: Sequence[ExpertWeights]
    """[L] stacks of S slots, as they are served."""


FROM_MODEL = FromModel()


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What one rank serves when it starts."""

    layout: SlotLayout
    held_LS: npt.ArrayLike
    """[L, S] logical expert in each of this rank's slots, shared ones from E on, -1 for empty.

    Two slots of a rank may hold one expert, but not where an agent attaches: the service has no
    placement in which a rank holds an expert twice."""
    tables_LEJ: npt.ArrayLike
    """[L, E, J] slots that this rank's tokens use, of all ranks' slots; -1 for an expert that they
    cannot use. The token in row t takes entry t modulo J, so J is how many slots of an expert one
    rank's tokens may be spread over; 1 where each rank uses one."""
    staging_rows: int
    """Experts of one layer that can be received before they are installed."""
    device: Device = CPU
    """What it is computed on."""
    shared_LM: npt.ArrayLike = ()
    """[L, M] slots that this rank's tokens use for shared experts; none where none is in slots."""
    rows: FromModel | KeptRows = FROM_MODEL
    """Where the weights in this rank's slots come from."""


def check_start(shape: StackShape, start: Start, peers: Peers) -> None:
    """Raise ShapeMismatch unless what a rank starts with fits the model and the group."""
    ranks = start.layout.slots_per_rank
    if len(ranks) != peers.size:
        raise ShapeMismatch("layout", got=(len(ranks),), expected=f"({peers.size},) ranks")
    held = np.shape(start.held_LS)
    if held != (expected := (shape.num_layers, ranks[peers.rank])):
        raise ShapeMismatch("held_LS", got=held, expected=f"{expected}")
    num_experts = shape.num_experts + shape.num_shared_in_slots
    content = np.asarray(start.held_LS)
    if ((content < EMPTY) | (content >= num_experts)).any():
        raise ShapeMismatch(
            f"held_LS with experts {content.min()} to {content.max()}",
            got=held,
            expected=f"{EMPTY} for empty, or 0 to {num_experts - 1}",
        )
    if not is_whole(start.staging_rows) or start.staging_rows < 0:
        raise ShapeMismatch(
            f"staging_rows {start.staging_rows!r}", got=(), expected="a whole number, 0 or more"
        )
    tables = np.shape(start.tables_LEJ)
    if tables[:2] != (expected := (shape.num_layers, shape.num_experts)) or len(tables) != 3:
        raise ShapeMismatch("tables_LEJ", got=tables, expected=f"{(*expected, 'J')}")
    shared, wanted = np.shape(start.shared_LM), (shape.num_layers, shape.num_shared_in_slots)
    if shared != wanted and (np.size(start.shared_LM) or wanted[1]):
        raise ShapeMismatch("shared_LM", got=shared, expected=f"{wanted}")
