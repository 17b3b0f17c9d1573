"""The weights that this rank serves, and the rows in which new ones are staged.

Axes    L layers   S local slots   R staging rows

Slots are stacked tensors whose addresses never change: an install copies a
staged expert into its slot in place, so a captured graph keeps reading the
right memory. Which expert a slot holds is kept beside the weights; -1 means
that the slot is empty and its bytes mean nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.errors import BadInstall, ShapeMismatch
from moe_runtime.contracts.torch_calls import from_array, is_whole, whole
from moe_runtime.contracts.weights import StackedWeights

__all__ = ["EMPTY", "ExpertSlots", "Install", "digest"]

EMPTY = -1
"""Held by a slot that holds no expert."""

W = TypeVar("W", bound=StackedWeights)


@dataclass(frozen=True, slots=True)
class Install:
    """Copy one staged expert into one slot."""

    local_slot: int
    staging_row: int


class ExpertSlots(Generic[W]):
    """All slots of one rank. All layers have the same format, shapes and number of slots.

    num_experts    of the model, shared ones that sit in slots included

    Raises ShapeMismatch and BadInstall for a content that slots cannot have.
    """

    def __init__(
        self,
        layers: Sequence[W],
        *,
        held_LS: npt.ArrayLike,
        staging_rows: int,
        num_experts: int,
    ) -> None:
        self._layers = tuple(layers)
        self._held_LS = whole(held_LS, "held_LS")
        self._num_experts = num_experts
        self._staging = self._layers[0].allocate(staging_rows)
        self.num_slots = next(iter(self._layers[0].named().values())).shape[0]
        self.staging_rows = staging_rows
        self._slots = [_by_row(weights) for weights in self._layers]
        self._rows = _by_row(self._staging)
        expected = (len(self._layers), self.num_slots)
        if self._held_LS.shape != expected:
            raise ShapeMismatch("held_LS", got=self._held_LS.shape, expected=f"{expected}")
        for layer, held_S in enumerate(self._held_LS):
            self._check_held(layer, held_S)

    def weights(self, layer: int) -> W:
        """Return the live stacks of one layer."""
        return self._layers[layer]

    def held(self) -> npt.NDArray[np.int64]:
        """Return a copy of [L, S]: the logical expert in each slot, or -1."""
        return self._held_LS.copy()

    def held_tensor(self, layer: int) -> Tensor:
        """Return int64 [S] on the host's live memory: whom the slots of a layer hold."""
        return from_array(self._held_LS[layer])

    def expert_tensors(self, layer: int, local_slot: int) -> dict[str, Tensor]:
        """Return views onto the live memory of one slot."""
        self._check_layer(layer)
        self._check(layer, "local slot", [local_slot], self.num_slots)
        return {name: stack[local_slot] for name, stack in self._layers[layer].named().items()}

    def staging_tensors(self, row: int) -> dict[str, Tensor]:
        """Return views onto one staging row, shaped like one expert."""
        self._check(0, "staging row", [row], self.staging_rows)
        return {name: stack[row] for name, stack in self._staging.named().items()}

    def install(self, layer: int, installs: Sequence[Install], held_S: npt.ArrayLike) -> None:
        """Copy staged experts into their slots in place, and note what each slot now holds.

        held_S    [S]  the layer's new content, -1 for empty; a slot whose expert changes to
                  another one must be among the installs

        Raises BadInstall, before anything is changed.
        """
        held = whole(held_S, "held_S")
        self._check_layer(layer)
        self._check_install(layer, installs, held)
        slots, rows = self._slots[layer], self._rows
        for install in installs:
            pairs = zip(slots[install.local_slot], rows[install.staging_row], strict=True)
            for slot, staged in pairs:
                slot.copy_(staged)
        self._held_LS[layer] = held

    def clear(self, layer: int, local_slot: int) -> None:
        """Take a slot for empty: its bytes are about to change, and no step is going on."""
        self._held_LS[layer, local_slot] = EMPTY

    def note(self, layer: int, local_slot: int, expert: int) -> None:
        """Take note that the bytes of a slot are those of an expert; only between two steps."""
        self._held_LS[layer, local_slot] = expert

    def _check_install(
        self, layer: int, installs: Sequence[Install], held: npt.NDArray[np.int64]
    ) -> None:
        targets = [i.local_slot for i in installs]
        self._check(layer, "local slot", targets, self.num_slots)
        self._check(layer, "staging row", [i.staging_row for i in installs], self.staging_rows)
        if len(set(targets)) < len(targets):
            raise BadInstall(layer=layer, reason=f"local slots {targets} name one slot twice")
        if held.shape != (self.num_slots,):
            raise BadInstall(
                layer=layer, reason=f"new content has shape {held.shape}, not ({self.num_slots},)"
            )
        self._check_held(layer, held)
        unfilled = set(np.flatnonzero((held != self._held_LS[layer]) & (held != EMPTY)).tolist())
        if missing := sorted(unfilled - set(targets)):
            raise BadInstall(layer=layer, reason=f"slots {missing} get a new expert but no weights")

    def _check_layer(self, layer: int) -> None:
        """Refuse what no layer is called; -1 would be the last one."""
        if not is_whole(layer) or not 0 <= layer < len(self._layers):
            raise BadInstall(
                layer=layer, reason=f"there is no such layer: there are {len(self._layers)}"
            )

    def _check_held(self, layer: int, held: npt.NDArray[np.int64]) -> None:
        self._check(layer, "expert", held[held != EMPTY].tolist(), self._num_experts)

    @staticmethod
    def _check(layer: int, what: str, numbers: Sequence[int], limit: int) -> None:
        if bad := [n for n in numbers if not 0 <= n < limit]:
            raise BadInstall(layer=layer, reason=f"there is no {what} {bad}: there are {limit}")


def _by_row(stacks: StackedWeights) -> list[tuple[Tensor, ...]]:
    """Return views onto each row of all stacks, made once: a cutover has no time for it."""
    named = stacks.named()
    return list(zip(*(named[name].unbind() for name in sorted(named)), strict=True))


def digest(tensors: Mapping[str, Tensor]) -> bytes:
    """Return 16 bytes that identify one expert: names, dtypes, shapes and every byte.

    BLAKE2b over the tensors in order of their names. Equal experts have equal digests on every
    rank; -0.0 and 0.0 differ, and so do two NaNs with other bits.
    """
    state = blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        state.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return state.digest()
