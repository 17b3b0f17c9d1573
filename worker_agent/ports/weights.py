"""Who moves weights beside the forward."""

from typing import Protocol

from eplb_service.domain.placement import Placement
from eplb_service.domain.wave import Order
from eplb_service.protocol.rank_state import Audited, RaiseHalt, RoundDone, RoundFailed

WeightsEvent = RoundDone | RoundFailed | Audited | RaiseHalt
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

    def begin_look(self, placement: Placement) -> None:
        """Check one more slot against what was put there; RaiseHalt where it is wrong.

        placement    as served now, to name the expert
        """
        ...

    def poll(self) -> WeightsEvent | None:
        """Return what has ended since, one at a time; None where nothing has."""
        ...

    def close(self, timeout_s: float) -> None:
        """End the mover; called once no step will run any more."""
        ...
