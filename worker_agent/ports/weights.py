"""Who moves weights beside the forward."""

from dataclasses import dataclass
from typing import Protocol

from eplb_service.domain.ids import IntArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.wave import Order
from eplb_service.protocol.rank_state import Audited, RaiseHalt, RoundDone, RoundFailed


@dataclass(frozen=True, slots=True)
class Restage:
    """One expert, to be brought once more to a slot that does not hold it any more."""

    layer: int
    expert: int
    source: int
    """Slots over the group."""
    target: int


@dataclass(frozen=True, slots=True)
class Restaged:
    """The expert of one of this rank's slots lies in a staging row, verified."""

    layer: int
    local_slot: int
    row: int


@dataclass(frozen=True, slots=True)
class TableStale:
    """The engine's table or its account of slots is not what was put in use."""

    text: str


WeightsEvent = RoundDone | RoundFailed | Audited | RaiseHalt | Restaged | TableStale
"""A mover that can move nothing any more raises a halt: no wave may be tried over it."""


class WeightsPort(Protocol):
    """Moves and checks weights on threads of its own; no call here waits for any of it."""

    def begin_round(self, order: Order, number: int) -> None:
        """Issue the transfers of one round, counted from 1, into staging rows.

        The k-th expert that the order has this rank receive goes to staging row k. A round
        begun is carried to its end, whatever becomes of the order.
        """
        ...

    def begin_audit(self, halt_number: int) -> None:
        """Check every slot's digest against what was put there; ends in Audited."""
        ...

    def begin_look(self, placement: Placement, table: IntArray) -> None:
        """Check one more slot against what was put there; RaiseHalt where it is wrong.

        And one layer's map: TableStale where the engine's is another.

        placement    as served now, to name the expert
        table        [L, E, J] in use now; not written to
        """
        ...

    def begin_restage(self, restage: Restage) -> None:
        """Bring an expert to a staging row of its slot's rank; ends in Restaged there.

        All ranks begin it at the same agreement, after the rounds that they began before.
        """
        ...

    def poll(self) -> WeightsEvent | None:
        """Return what has ended since, one at a time; None where nothing has."""
        ...

    def close(self, timeout_s: float) -> None:
        """End the mover; called once no step will run any more."""
        ...
