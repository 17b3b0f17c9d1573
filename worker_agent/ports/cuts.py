"""Who takes the load totals at step boundaries."""

from typing import Protocol

from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import ShareName


class CutsPort(Protocol):
    """Takes copies on the step's thread, cheaply and without waiting."""

    def at_step(self, step: int, served: ShareName, placement: Placement) -> None:
        """Take a cut before `step`, if one is due there."""
        ...

    def closing(self, step: int, served: ShareName, placement: Placement) -> None:
        """Take the closing totals of `served`, whose last step was the one before `step`."""
        ...
