"""Token rows as they travel: as they are, or quantised, with the scales that belong to them.

Axes    M rows   Z width of a row   W elements of a quantised row   B scales of a row

Rows are quantised by the rank that sends them, after routing, which reads unquantised tokens
only. Values and scales are one object, so that no exchange can move one without the other.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from moe_runtime.contracts.errors import ShapeMismatch

__all__ = ["AS_IS", "AsIs", "PlainRows", "QuantisedRows", "RowCoder", "Rows", "pick_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class PlainRows:
    """Rows in the dtype of the model."""

    x_MZ: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        """Return what must travel."""
        return (self.x_MZ,)

    def of(self, parts: tuple[Tensor, ...]) -> "PlainRows":
        """Return other rows of the same kind, from what has travelled."""
        (x_MZ,) = parts
        return PlainRows(x_MZ)


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedRows:
    """Rows as a format holds them; only the format knows how to read them.

    Raises ShapeMismatch unless there are scales for each row.
    """

    values_MW: Tensor
    scales_MB: Tensor

    def __post_init__(self) -> None:
        if self.scales_MB.ndim != 2 or self.scales_MB.shape[0] != self.values_MW.shape[0]:
            raise ShapeMismatch(
                "scales of quantised rows",
                got=self.scales_MB.shape,
                expected=f"({self.values_MW.shape[0]}, B)",
            )

    def parts(self) -> tuple[Tensor, ...]:
        """Return what must travel."""
        return (self.values_MW, self.scales_MB)

    def of(self, parts: tuple[Tensor, ...]) -> "QuantisedRows":
        """Return other rows of the same kind, from what has travelled."""
        values_MW, scales_MB = parts
        return QuantisedRows(values_MW, scales_MB)


Rows = PlainRows | QuantisedRows


class RowCoder(Protocol):
    """How a dispatch encodes the rows that it sends; a format's row quantiser is one."""

    def encode(self, x_MZ: Tensor) -> Rows:
        """Return the rows to send, each row by itself: no row may depend on another."""
        ...


@dataclass(frozen=True, slots=True)
class AsIs:
    """Send rows in the dtype of the model."""

    def encode(self, x_MZ: Tensor) -> PlainRows:
        """Return the rows unchanged."""
        return PlainRows(x_MZ)


AS_IS = AsIs()


def pick_rows(rows: Rows, index: Tensor) -> Rows:
    """Return the rows that an index names, each with its scales."""
    return rows.of(tuple(part[index] for part in rows.parts()))
