"""Serving on without ranks that are dead, over the rows that those that live hold.

Axes    L layers   S local slots   N ranks that live
"""

from dataclasses import replace

import numpy as np
import torch

from moe_runtime.contracts.errors import MoeError, ShapeMismatch
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.survival_errors import ExpertsLost
from moe_runtime.contracts.torch_calls import to_ints, whole
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.exchange.peers import Peers
from moe_runtime.placement.slots import EMPTY, ExpertSlots, digest
from moe_runtime.runtime.engine import MoeRuntime
from moe_runtime.runtime.loading import served_as
from moe_runtime.runtime.sources import ExpertSource
from moe_runtime.runtime.start import KeptRows, Start, check_start
from moe_runtime.runtime.surroundings import lasting
from moe_runtime.runtime.traffic import Traffic

__all__ = ["serve_on"]


def serve_on(
    before: MoeRuntime,
    start: Start,
    *,
    peers: Peers,
    mode: ExchangeMode | Traffic,
    source: ExpertSource,
) -> MoeRuntime:
    """Return a runtime of the ranks that live, over the rows that `before` holds.

    start     what this rank is to serve, of a group without the dead; the device stays
    peers     those that live, in a group of their own
    source    gives what a slot is to hold and does not, in place and verified by digest

    Collective over `peers`: no rank has a runtime before every rank has all its experts, and those
    that two ranks hold are compared. Nothing serves by `before` from here on, whatever comes of it.

    Raises ShapeMismatch, with nothing changed, for what does not fit the rows that there are;
    ExpertsLost, on all ranks, if any could not get an expert, after which it may be called again;
    RanksDisagree and what MoeRuntime raises.
    """
    check_start(before.model.shape, start, peers)
    traffic = mode if isinstance(mode, Traffic) else Traffic(mode=mode)
    _check_rows(before, start, traffic, rank=peers.rank)
    before.guard.standing.lose("its ranks that live serve on in another group")
    home = before.device.home
    with lasting(home):
        reasons = _fill(before.slots, whole(start.held_LS, "held_LS"), source)
        own = torch.tensor([[len(reasons)]], dtype=torch.int64, device=home)
        told = to_ints(peers.all_gather(own, [1] * peers.size)[:, 0])
    if any(told):
        raise ExpertsLost(rank=peers.rank, source=source.name, reasons=reasons, unfilled_N=told)
    layers = tuple(before.slots.weights(layer) for layer in range(before.model.shape.num_layers))
    kept = replace(start, device=before.device, rows=KeptRows(layers))
    served = before.served
    return MoeRuntime(
        before.model, kept, peers=peers, mode=traffic, dtype=served.dtype, packing=served.packing
    )


def _check_rows(before: MoeRuntime, start: Start, traffic: Traffic, *, rank: int) -> None:
    num_slots = start.layout.slots_per_rank[rank]
    if num_slots != before.slots.num_slots:
        raise ShapeMismatch(
            f"slots of rank {rank}", got=(num_slots,), expected=f"{before.slots.num_slots}, kept"
        )
    served = before.served
    if served_as(traffic, served.packing, served.dtype) != served:
        raise ShapeMismatch("rows kept for another exchange", got=(), expected="the same scales")


def _fill(
    slots: ExpertSlots[ExpertWeights],
    wanted_LS: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    source: ExpertSource,
) -> list[str]:
    """Bring slots to what they are to hold; return what is missing and why, in words."""
    missing: list[str] = []
    for layer, slot in np.argwhere(slots.held() != wanted_LS).tolist():
        expert = int(wanted_LS[layer, slot])
        slots.clear(layer, slot)
        if expert == EMPTY:
            continue
        what = f"expert {expert} of layer {layer}"
        try:
            found = source.find(layer, expert)
        except (MoeError, OSError, ValueError) as error:
            missing.append(f"{what} cannot be read: {type(error).__name__}: {error}")
            continue
        if found is None:
            missing.append(f"{what} is not there")
            continue
        tensors = slots.expert_tensors(layer, slot)
        for name, tensor in tensors.items():
            tensor.copy_(found.tensors[name])
        if digest(tensors) != found.digest:
            missing.append(f"{what} came with other bytes than were put there")
            continue
        slots.note(layer, slot, expert)
    return missing
