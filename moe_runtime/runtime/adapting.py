"""The adapters that one rank has loaded, and what a batch asks of them.

Axes    L layers   T rows   N adapters   E logical experts
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from moe_runtime.contracts.adapters import (
    NO_ADAPTER,
    NO_ADAPTERS,
    AdapterIds,
    BadAdapter,
    ExpertAdapters,
    NoAdapters,
)
from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.layer.given import LayerAdapters
from moe_runtime.placement.slots import digest
from moe_runtime.runtime.batch import Batch
from moe_runtime.runtime.model import StackShape
from moe_runtime.runtime.surroundings import lasting

__all__ = ["LoadedAdapters"]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAdapters:
    """What tokens may use; none are loaded at a start."""

    num_adapters: int
    """N, of the deployment; 0 where it has none."""
    dtype: torch.dtype
    """The model's."""
    home: torch.device
    layers: tuple[ExpertAdapters, ...] = ()
    mark: int = 0
    """Fingerprint of all their bytes: ranks that have loaded others must not step together."""

    def check(self, batch: Batch) -> None:
        """Raise BadAdapter or ShapeMismatch unless all that a batch asks for is there."""
        if isinstance(batch.adapters, NoAdapters):
            return
        ids_T = batch.adapters.ids_T
        if ids_T.shape != batch.real_T.shape:
            raise ShapeMismatch(
                "adapters", got=ids_T.shape, expected=f"{tuple(batch.real_T.shape)}"
            )
        there = self.num_adapters if self.layers else 0
        wrong_T = ((ids_T < NO_ADAPTER) | (ids_T >= there)) & batch.real_T
        if bool(wrong_T.any()):
            raise BadAdapter(
                f"{int(wrong_T.sum())} tokens ask for adapters such as {int(ids_T[wrong_T][0])}, "
                f"and {there} are loaded"
            )

    def of_layer(self, layer: int, batch: Batch) -> NoAdapters | LayerAdapters:
        """Return what a layer is given.

        Rows carry a number once adapters are loaded, whatever their tokens use: all ranks must
        send rows of the same width.
        """
        if not self.layers:
            return NO_ADAPTERS
        match batch.adapters:
            case NoAdapters():
                ids_T = torch.full_like(batch.real_T, NO_ADAPTER, dtype=torch.int64)
            case AdapterIds(ids_T):
                pass
        return LayerAdapters(ids_T, self.layers[layer])

    def replaced_by(self, layers: Sequence[ExpertAdapters], shape: StackShape) -> "LoadedAdapters":
        """Return others as they are served; raises ShapeMismatch unless they fit the model.

        Copies, since their fingerprint is taken once: changed later by their owner, they would
        differ between ranks without a word.
        """
        mark = _checked_mark(shape, self.num_adapters, layers)
        with lasting(self.home):
            served = tuple(_served(layer, self.dtype, self.home) for layer in layers)
        return replace(self, layers=served, mark=mark)


def _checked_mark(shape: StackShape, num_adapters: int, layers: Sequence[ExpertAdapters]) -> int:
    """Return a fingerprint of all bytes; raises ShapeMismatch."""
    if len(layers) != shape.num_layers:
        raise ShapeMismatch("adapters", got=(len(layers),), expected=f"({shape.num_layers},)")
    wanted = (num_adapters, shape.num_experts, shape.routed_width, 2 * shape.intermediate)
    mark = 0
    for layer in layers:
        n, e, _, z = layer.a13_NERZ.shape
        if (n, e, z, layer.b13_NEFR.shape[2]) != wanted:
            raise ShapeMismatch(
                "adapters", got=(n, e, z, layer.b13_NEFR.shape[2]), expected=f"{wanted} (N E Z F)"
            )
        stacks = {
            "a13": layer.a13_NERZ,
            "b13": layer.b13_NEFR,
            "a2": layer.a2_NERI,
            "b2": layer.b2_NEZR,
        }
        mark = zlib.crc32(digest(stacks), mark)
    return mark


def _served(layer: ExpertAdapters, dtype: torch.dtype, home: torch.device) -> ExpertAdapters:
    stacks = (layer.a13_NERZ, layer.b13_NEFR, layer.a2_NERI, layer.b2_NEZR)
    return ExpertAdapters(*(s.detach().to(device=home, dtype=dtype, copy=True) for s in stacks))
