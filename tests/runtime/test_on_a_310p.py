"""The variant for a 310P, on emulated kernels in a memory apart: no NPU takes part."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.npu_backend import NpuBackend310
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_ffn import Arrangements
from moe_runtime.contracts.errors import Unsupported
from moe_runtime.contracts.npu_errors import NpuCallRefused, NpuKernelMissing
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.routing.router import GatingPath
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    DenseReference,
    ExchangeMode,
    MoeRuntime,
    Packing,
    Phase,
    SelectorSettings,
    StackShape,
    Step,
    StepKind,
    SyntheticModel,
    WeightFormat,
)
from moe_runtime.runtime.npu_device import NpuDevice
from tests.npu.emulation import KERNELS
from tests.runtime.apart import HOME, PeersApart, apart, on_host, operators_apart
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import random_layout, tokens

SHAPE = replace(stack_of(KINDS["softmax"]), intermediate=16)


class NoStreams:
    """Meets `Streams` on one stream."""

    def record(self) -> object:
        return None

    def wait(self, event: object) -> None:
        del event

    def second(self) -> AbstractContextManager[None]:
        return nullcontext()


def counted_in_32_bits(**given: Any) -> tuple[Tensor, ...]:
    """Route like the other devices do, but for the types of what is told beside rows."""
    rows, index, counts, _ = KERNELS["npu_moe_init_routing_v2"](**given)
    return rows, index, counts.int(), index


def device() -> NpuDevice:
    kernels = {**KERNELS, "npu_moe_init_routing_v2": counted_in_32_bits}
    backend = NpuBackend310(NpuDoor(operators_apart(kernels), HOME))
    arrangements = Arrangements(backend.door)
    return NpuDevice(DeviceKind.P310, backend, None, NoStreams(), nullcontext, arrangements)


def served(shape: StackShape, weights: WeightFormat = WeightFormat.UNQUANTISED) -> Tensor:
    start = random_layout(shape, (shape.num_experts + 1,), seed=1).start(0)
    step = Step(StepKind.REAL, Phase.DECODE)
    with apart():
        runtime = MoeRuntime(
            SyntheticModel(shape),
            replace(start, device=device()),
            peers=PeersApart(Alone()),
            mode=ExchangeMode.ALL_GATHER,
            dtype=torch.float16,
            packing=Packing(weights),
        )
        given = Batch.of(tokens(shape, 6, seed=2), ByGate(), step)
        return on_host(runtime.forward(given.at(HOME)))


def test_counts_of_32_bits_are_widened_and_plain_float16_is_computed() -> None:
    right = DenseReference(SyntheticModel(SHAPE)).forward(tokens(SHAPE, 6, seed=2), ByGate())
    missed = (served(SHAPE).double() - right).square().sum() / right.square().sum()
    # A router in float16 may choose a neighbour where two scores are alike; none are here.
    assert float(missed.sqrt()) < 12 * 2.0**-11


def test_widths_that_its_operators_do_not_take_are_refused() -> None:
    with pytest.raises(NpuCallRefused, match=r"24 wide .* a multiple of 16, of float16, on a 310P"):
        served(replace(SHAPE, intermediate=12))


def test_formats_that_are_not_built_are_refused_at_load() -> None:
    with pytest.raises(Unsupported, match="W8A8 of a 310P has an operator of its own"):
        served(SHAPE, WeightFormat.W8A8)
    with pytest.raises(Unsupported, match="310P reads unquantised and W8A8 weights only"):
        served(SHAPE, WeightFormat.W4A16)


def test_its_routers_use_the_reference() -> None:
    settings = KINDS["softmax"].routing
    assert isinstance(settings, SelectorSettings)
    assert device().gating(settings) is GatingPath.REFERENCE
    with pytest.raises(NpuKernelMissing, match="not for a 310P"):
        device().backend.gate(torch.zeros(1, 8), settings, None)
