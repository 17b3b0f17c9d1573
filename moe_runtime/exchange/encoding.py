"""Placed tokens as they travel: encoded, and with the number of an adapter where there are any."""

from moe_runtime.contracts.rows import AdaptedRows, RowCoder, Rows
from moe_runtime.contracts.stages import Placed, PlacedAdapted

__all__ = ["encode"]


def encode(placed: Placed, coder: RowCoder) -> Rows:
    """Return the rows to send; what an adapter changes must be sent plain, so it is."""
    if isinstance(placed, PlacedAdapted):
        return AdaptedRows(placed.x_TZ, placed.adapters_T)
    return coder.encode(placed.x_TZ)
