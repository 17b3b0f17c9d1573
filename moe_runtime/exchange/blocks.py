"""How many rows every rank's block has.

Axes    N ranks
"""

from dataclasses import dataclass

from moe_runtime.contracts.stages import Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.active import AllActive, Masked, all_active, masked

__all__ = ["EVEN", "BlockRows", "EvenRows", "UnevenRows", "block_of"]


@dataclass(frozen=True, slots=True)
class EvenRows:
    """Every rank pads to what the fullest rank of the step brings, behind a mask."""


@dataclass(frozen=True, slots=True)
class UnevenRows:
    """Ranks bring what they have; sizes follow from a number fixed beforehand, without a mask."""

    global_rows: int
    """Rows of all ranks together at most; the same on every rank."""


EVEN = EvenRows()
BlockRows = EvenRows | UnevenRows


def block_of(placed: Placed, view: StepView, rows: BlockRows) -> tuple[Masked | AllActive, int]:
    """Return what enters the exchange, and the rows by which windows are sized on every rank."""
    num_ranks = len(view.rows_N)
    match rows:
        case EvenRows():
            block = max(view.rows_N)
            return masked(placed, block), block
        case UnevenRows(global_rows):
            entering = all_active(placed, global_rows=global_rows, num_ranks=num_ranks)
            return entering, global_rows // num_ranks
