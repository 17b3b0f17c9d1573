"""The whole engine on each rank's device against the CPU's float64 reference.

Run by the hardware tests on NPUs, and by the others on CPUs, so that it is known to work where it
is needed. Every rank is a process of its own.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from moe_runtime.runtime import (
    Batch,
    ByLogits,
    DenseReference,
    ExchangeMode,
    Install,
    MoeRuntime,
    Packing,
    Phase,
    Step,
    StepKind,
    SyntheticModel,
    WeightFormat,
    open_device,
    peers_of,
)
from tests.runtime.mixed import MIXED, Mixed
from tests.runtime.stacks import tokens

__all__ = ["Asked", "errors_of", "most_of"]

SHAPE = replace(MIXED, width=1024, intermediate=64)
"""As MC2's operators take it: 1,024 wide or more, and matrices in whole pieces."""
DECODE = Step(StepKind.REAL, Phase.DECODE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What every rank serves."""

    device: str
    """cpu, or npu: rank 1 on npu:1."""
    mode: ExchangeMode
    stored: WeightFormat
    num_ranks: int


def errors_of(rank: int, asked: Asked) -> tuple[float, float]:
    """Return how far a rank's output is off before and after a move, as a share of its norm."""
    device = open_device("cpu" if asked.device == "cpu" else f"{asked.device}:{rank}")
    shape = SHAPE
    mixed = Mixed.drawn(shape, (12,) * asked.num_ranks, seed=3)
    start = mixed.start(rank)
    model = SyntheticModel(shape, gates_shared=True)
    runtime = MoeRuntime(
        model,
        replace(start, device=device),
        peers=peers_of(device),
        mode=asked.mode,
        dtype=torch.bfloat16,
        packing=Packing(asked.stored),
    )
    before = _off(runtime, rank)
    for layer, held in enumerate(runtime.held()):  # each in turn, again where it is: in place
        for slot in np.flatnonzero(held >= 0).tolist():
            fresh = runtime.expert(layer, int(held[slot])).named()
            for name, row in runtime.slots.staging_tensors(0).items():
                row.copy_(fresh[name][0])
            runtime.install(layer, [Install(slot, 0)], held)
    return before, _off(runtime, rank)


def _off(runtime: MoeRuntime, rank: int) -> float:
    """By given logits: in bfloat16 a gate so wide would choose others than the reference."""
    x_TD = tokens(SHAPE, 6 + rank, seed=rank)
    draw = torch.Generator().manual_seed(10 + rank)
    by = ByLogits(torch.randn((SHAPE.num_layers, 6 + rank, SHAPE.num_candidates), generator=draw))
    given = Batch.of(x_TD, by, DECODE).at(runtime.device.home)
    got = runtime.forward(given).cpu().double()
    right = DenseReference(runtime.model).forward(x_TD.bfloat16(), by)
    missed, size = ((t.square().sum()) for t in (got - right, right))
    return float((missed / size).sqrt())


def most_of(stored: WeightFormat) -> float:
    """Return how far a format may be off in all: steps of its weights and of its rows, twice each.

    Two layers of bfloat16 lose some 2 ** -6 by themselves.
    """
    step = {
        WeightFormat.UNQUANTISED: 0.0,
        WeightFormat.W8A8: 2 / 127,
        WeightFormat.W4A8: 2 / 7,
        WeightFormat.W4A16: 2 / 7,
        WeightFormat.W8A8_FP8: 2 / 16,
        WeightFormat.W8A8_MXFP8: 2 / 8,
        WeightFormat.W4A4_MXFP4: 2 / 2,
    }
    return 2.0**-5 + 2 * step[stored]
