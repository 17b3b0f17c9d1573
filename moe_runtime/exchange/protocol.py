"""What an exchange mode is."""

from typing import Protocol, TypeVar

from moe_runtime.contracts.stages import Combined, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView

__all__ = ["Exchange"]

C = TypeVar("C")


class Exchange(Protocol[C]):
    """A pair of stages around the experts. All ranks of a group use the same mode.

    Both issue the same collectives in the same order on every rank, whatever its tokens are,
    so ranks without tokens take part by calling them with none.
    """

    def dispatch(self, placed: Placed, view: StepView) -> Dispatched[C]:
        """Bring every token row to the slot it was placed in."""
        ...

    def combine(self, computed: Computed[C]) -> Combined:
        """Bring results back to the owners of the tokens and sum them there, in token order."""
        ...
