"""Where an expert comes from once no rank holds it any more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moe_runtime.placement.slots import digest
from moe_runtime.runtime.engine import MoeRuntime

__all__ = ["NO_SOURCE", "Checkpoint", "ExpertSource", "HostBackup", "NoSource", "Sourced"]


@dataclass(frozen=True, slots=True, eq=False)
class Sourced:
    """One expert as a slot holds it."""

    tensors: Mapping[str, Tensor]
    """Without the axis of slots, named as in a slot."""
    digest: bytes
    """Of what it must be; of what was read, where nobody knows better."""


class ExpertSource(Protocol):
    """Gives experts to the slots of one rank."""

    @property
    def name(self) -> str:
        """What it is called in logs and errors."""
        ...

    def find(self, layer: int, expert: int) -> Sourced | None:
        """Return an expert, a shared one from E on; None: it is not here."""
        ...


@dataclass(frozen=True, slots=True)
class NoSource:
    """Meets ExpertSource where none is set: an expert that no rank holds is gone."""

    name: str = "no source (none is set)"

    def find(self, layer: int, expert: int) -> Sourced | None:
        """Return nothing."""
        del layer, expert


NO_SOURCE = NoSource()


class Checkpoint:
    """Meets ExpertSource: reads the model again, whatever that reads from."""

    name = "the checkpoint"

    def __init__(self, runtime: MoeRuntime) -> None:
        self._runtime = runtime

    def find(self, layer: int, expert: int) -> Sourced | None:
        """Read an expert of the model, in the format that is served."""
        named = self._runtime.expert(layer, expert).named()
        tensors = {name: stack[0] for name, stack in named.items()}
        return Sourced(tensors, digest(tensors))


class HostBackup:
    """Meets ExpertSource: some experts as they are served, kept in this host's memory.

    Each has the digest of what was put there, so what rots there is not served.
    """

    name = "the host backup"

    def __init__(self, kept: Mapping[tuple[int, int], Sourced]) -> None:
        self._kept = dict(kept)

    @classmethod
    def of(cls, source: ExpertSource, experts: Iterable[tuple[int, int]]) -> "HostBackup":
        """Copy experts (layer, number) out of another source, as far as it has them."""
        kept: dict[tuple[int, int], Sourced] = {}
        for layer, expert in experts:
            found = source.find(layer, expert)
            if found is not None:
                host = torch.device("cpu")
                copies = {n: t.detach().to(host, copy=True) for n, t in found.tensors.items()}
                kept[layer, expert] = Sourced(copies, found.digest)
        return cls(kept)

    def find(self, layer: int, expert: int) -> Sourced | None:
        """Return what was kept of an expert."""
        return self._kept.get((layer, expert))
