"""The whole engine with fused MC2 of the Ascend backend, emulated, on each of two ranks.

Experts are lent by their own layers here, and a move is seen by what was arranged before it.
"""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_ffn import Arrangements
from moe_runtime.backends.npu_mc2 import Communicator
from moe_runtime.contracts.torch_calls import to_ints
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.runtime import (
    Batch,
    ByGate,
    DenseReference,
    ExchangeMode,
    GroupPeers,
    Install,
    MoeRuntime,
    Packing,
    Phase,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from moe_runtime.runtime.communicators import Communicators
from moe_runtime.runtime.npu_device import NpuDevice
from tests.npu.engine_ranks import most_of
from tests.runtime.stacks import kimi_like, random_layout, tokens

__all__ = ["compare_engine"]

SHAPE = replace(kimi_like(width=256), latent=None, activation=SwiGLU(), intermediate=32)
DECODE = Step(StepKind.REAL, Phase.DECODE)


class OneStream:
    """Meets `Streams`."""

    def record(self) -> object:
        return None

    def wait(self, event: object) -> None:
        del event

    @contextmanager
    def second(self) -> Generator[None]:
        yield


def device_of(rank: int) -> NpuDevice:
    door = NpuDoor(torch.ops.npu, torch.device("cpu"), torch.ops._C_ascend)
    world = dist.group.WORLD
    assert world is not None
    made = Communicators(world, Communicator("emulated", rank, 2), world)
    backend = NpuBackend(door, fuses=True)
    return NpuDevice(DeviceKind.A3, backend, made, OneStream(), nullcontext, Arrangements(door))


def compare_engine(rank: int) -> None:
    """Rows of both ranks, of one alone, and more than the buffers are for; then a move."""
    for stored in (WeightFormat.UNQUANTISED, WeightFormat.W8A8):
        layout = random_layout(SHAPE, (6, 6), seed=3, num_empty=1, num_choices=2)
        start = layout.start(rank)
        runtime = MoeRuntime(
            SyntheticModel(SHAPE),
            replace(start, device=device_of(rank)),
            peers=GroupPeers(),
            mode=Traffic(mode=ExchangeMode.FUSED_MC2, buffer_rows=5),
            dtype=torch.bfloat16,
            packing=Packing(stored),
        )
        for num_tokens in (3 + rank, 5 * rank, 9 - rank):
            assert off(runtime, num_tokens, seed=rank) < most_of(stored), (stored, num_tokens)
        assert runtime.counters().overflow_rows == (9 - rank) * SHAPE.num_layers
        swap(runtime)
        assert off(runtime, 4, seed=7) < most_of(stored), f"{stored} after a move"


def swap(runtime: MoeRuntime) -> None:
    """Let two slots of each layer change places, and only the weights: outputs must stay right."""
    for layer, held in enumerate(runtime.held()):
        full = np.flatnonzero(held >= 0)
        one, other = int(full[0]), int(full[-1])
        for row, source in enumerate((other, one)):
            for name, staged in runtime.slots.staging_tensors(row).items():
                staged.copy_(runtime.slots.expert_tensors(layer, source)[name])
        moved = held.copy()
        moved[one], moved[other] = held[other], held[one]
        runtime.install(layer, [Install(one, 0), Install(other, 1)], moved)
        base = runtime.layout.base(dist.get_rank())
        every = GroupPeers().all_gather(torch.tensor([[base, one, other]]), [1, 1])
        table = runtime.tables()[layer]
        swapped = table.copy()
        for start, first, last in (to_ints(row) for row in every):
            swapped[table == start + first] = start + last
            swapped[table == start + last] = start + first
        runtime.set_table(layer, swapped)


def off(runtime: MoeRuntime, num_tokens: int, *, seed: int) -> float:
    x_TD = tokens(SHAPE, num_tokens, seed=seed)
    got = runtime.forward(Batch.of(x_TD, ByGate(), DECODE)).double()
    right = DenseReference(runtime.model).forward(x_TD.bfloat16(), ByGate())
    missed, size = (t.square().sum().clamp(min=1e-30) for t in (got - right, right))
    return float((missed / size).sqrt()) if num_tokens else 0.0
