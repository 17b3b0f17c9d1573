"""What the glue of a simulated controller needs of the machine that runs its waves."""

from collections.abc import Callable
from typing import Protocol

from eplb_service.controller.machine_state import Event
from eplb_service.protocol.messages import ToMachine
from eplb_service.protocol.wave_state import WaveState
from eplb_service.sim.beliefs import Beliefs

Post = Callable[[int, ToMachine], None]


class Desk(Protocol):
    """Either the wave machine alone, or the whole machine of a deployment."""

    @property
    def wave(self) -> WaveState | None:
        """The last wave that it knows of."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the last wave is over, on record, and another could start."""
        ...

    @property
    def has_todo(self) -> bool:
        """Whether something waits to be performed."""
        ...

    def tell(self, event: Event, beliefs: Beliefs) -> None:
        """Take what happened to the newest incarnation, as the controller's machine is told."""
        ...

    def be_patient(self, num_nudges: int) -> None:
        """Set how many nudges a wave has until its deadline."""
        ...

    def give_up(self, reason: str) -> None:
        """End what runs, if it still may be."""
        ...

    def perform(self) -> object:
        """Do the next thing that waits; returns it, or a text that names it.

        Raises StoreConflict, and StoreUnavailable where it is to be done again.
        """
        ...
