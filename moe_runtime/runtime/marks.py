"""Numbers by which ranks find out that they are about to compute different things.

Axes    T rows   D model width   L layers   X experts to choose from

A rank tells them when it is built, or with each step. They are small, so ranks that differ are
found out nearly always, and ranks that are alike are never taken for others.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import cast

import torch
from torch import Tensor

from moe_runtime.contracts.adapters import AdapterIds
from moe_runtime.contracts.tokens import TokenIds
from moe_runtime.formats.packing import Packing
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.placement.slots import digest
from moe_runtime.routing.kinds import CustomRouting, OnInputRouting
from moe_runtime.runtime.batch import Batch, ByLogits
from moe_runtime.runtime.model import StackShape

__all__ = ["fingerprint", "mark_of_expert", "mark_of_model", "mark_of_parts", "mark_of_settings"]

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""By bytes of a number; of 8, its halves are words."""
_ODD = 0x9E3779B97F4A7C15 - 2**64
"""The golden ratio's fraction in 64 bits. Odd, so that no bit of a word is lost in a product."""
_LOW_HALF = 2**32 - 1
_SPREAD = 1_000_003
"""Keeps apart which part of a batch a number is of."""


def mark_of_model(shape: StackShape, dtype: torch.dtype, packing: Packing) -> int:
    """Return a number, the same on every rank that serves the same.

    A model's own function is left out: no two processes have it at one address.
    """
    routing = shape.selector
    by = routing.by if isinstance(routing, OnInputRouting) else routing
    chosen = (by.num_experts, by.top_k, by.factor) if isinstance(by, CustomRouting) else by
    rest = [getattr(shape, field.name) for field in fields(shape) if field.name != "selector"]
    told = repr((type(routing).__name__, chosen, rest, dtype, packing))
    return zlib.crc32(told.encode())


def mark_of_parts(layers: Sequence[LayerWeights]) -> int:
    """Return a number for the bytes of all that layers have beside the experts in slots.

    Every rank has all of it. A rank with another checkpoint would route by another gate, and
    what it sends would come back computed by experts of the others.
    """
    tensors = {f"{i}": tensor for i, tensor in enumerate(_tensors(tuple(layers)))}
    return zlib.crc32(digest(tensors))


def mark_of_settings(numbers: Mapping[str, int]) -> int:
    """Return a number for settings that ranks have compared one by one when they were built."""
    return zlib.crc32(repr(dict(numbers)).encode())


def mark_of_expert(tensors: Mapping[str, Tensor]) -> int:
    """Return a number, never 0, for every byte of one expert as a slot holds it.

    A checksum, not `digest`: it is taken of everything that is loaded, and is five times as fast.
    """
    told = 0
    for name in sorted(tensors):
        bytes_ = tensors[name].detach().contiguous().cpu().reshape(-1).view(torch.uint8)
        told = zlib.crc32(bytes_.numpy().data, told)
    return told + 1


def _tensors(part: object) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for inner in cast("tuple[object, ...]", part):
            yield from _tensors(inner)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))


def fingerprint(batch: Batch) -> int:
    """Return a number for the bits of all tokens, of what routes and adapts them, and their places.

    Padding rows may be anything.
    """
    parts = [batch.x_TD]
    if isinstance(batch.router, ByLogits):
        parts.append(batch.router.logits_LTE.transpose(0, 1).flatten(1))
    if isinstance(batch.token_ids, TokenIds):
        parts.append(batch.token_ids.ids_T[:, None])
    if isinstance(batch.adapters, AdapterIds):
        parts.append(batch.adapters.ids_T[:, None])
    told = len(parts)
    for part in parts:
        told = told * _SPREAD + _of_rows(part, batch.real_T)
    return (told + 2**63) % 2**64 - 2**63  # as a number of 64 bits with a sign


def _of_rows(rows_TX: Tensor, real_T: Tensor) -> int:
    """Return a sum over rows of mixed sums over mixed words, so that equal changes do not cancel.

    Each mixing tells all words apart, and its seed the places: no single changed word is lost.
    """
    words = rows_TX.detach().contiguous().view(_WORDS[rows_TX.dtype.itemsize])
    sums_T = _mixed(words.to(torch.int64) + _seeds(words.shape[1], words.device)).sum(dim=1)
    mixed_T = _mixed(_mixed(sums_T + _seeds(words.shape[0], words.device)))
    return int(torch.where(real_T, mixed_T, 0).sum())


def _seeds(num: int, home: torch.device) -> Tensor:
    return torch.arange(1, num + 1, device=home) * _ODD


def _mixed(words: Tensor) -> Tensor:
    """Return int64 words, changed in place: different ones for different ones.

    A product, cut to 64 bits, carries a bit up only, and a sign hardly: so its high half is then
    brought down, as if it had no sign.
    """
    words.mul_(_ODD)
    return words.bitwise_xor_(words.bitwise_right_shift(32).bitwise_and_(_LOW_HALF))
