"""Where experts lie, as whoever moves them sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """What an engine goes by when it sends tokens and computes them."""

    held: npt.NDArray[np.int64]
    """[L, S] expert in each local slot."""
    tables: npt.NDArray[np.int64]
    """[L, E, J] dispatch table."""


class ExpertMemory(Protocol):
    """Live views of one rank's slots and staging rows.

    Every tensor of an expert is there, under the same names in a slot and in a staging
    row. Any thread may read a slot and write a staging row; slots are written on the
    step's thread alone.
    """

    def slot(self, layer: int, local_slot: int) -> Mapping[str, Tensor]:
        """Return the tensors of one slot."""
        ...

    def staging(self, row: int) -> Mapping[str, Tensor]:
        """Return the tensors of one staging row."""
        ...

    def digest(self, tensors: Mapping[str, Tensor]) -> bytes:
        """Return 16 bytes that identify an expert by every byte of its tensors."""
        ...

    def maps(self) -> Maps:
        """Copy what the engine goes by now; the step's thread may be writing it."""
        ...


class DigestBook:
    """What every slot and staging row was seen to hold, for the audit and for senders.

    The mover writes rows, and slots once at the start; the step's thread moves a row's
    digest to its slot at a switch. The protocol keeps the two apart in time: rows are
    written before the order is staged, and read after.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], bytes] = {}
        self._rows: dict[int, bytes] = {}

    def note_slot(self, layer: int, local_slot: int, digest: bytes) -> None:
        """A slot was seen to hold this, at the start."""
        self._slots.setdefault((layer, local_slot), digest)

    def note_row(self, row: int, digest: bytes) -> None:
        """A staging row was verified to hold this."""
        self._rows[row] = digest

    def install(self, layer: int, local_slot: int, row: int) -> None:
        """A staging row was copied to a slot."""
        self._slots[layer, local_slot] = self._rows[row]

    def empty(self, layer: int, local_slot: int) -> None:
        """A slot was declared empty."""
        self._slots.pop((layer, local_slot), None)

    def slot(self, layer: int, local_slot: int) -> bytes:
        """Return what a filled slot must hold."""
        return self._slots[layer, local_slot]

    def slots(self) -> dict[tuple[int, int], bytes]:
        """Return a copy of what each filled slot, by layer and local slot, must hold."""
        return dict(self._slots)
