"""What a caller puts around a call (autocast, inference mode, default types) changes no bit."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.runtime import (
    AdapterIds,
    Alone,
    Batch,
    ByGate,
    ExchangeMode,
    Install,
    LatentShape,
    MoeRuntime,
    Packing,
    Phase,
    StackShape,
    Step,
    StepKind,
    SyntheticModel,
    TokenIds,
    Traffic,
    WeightFormat,
)
from moe_runtime.runtime.loading import at_home
from tests.runtime.routings import KINDS, VOCABULARY, stack_of
from tests.runtime.stacks import kimi_like, random_layout, tokens
from tests.runtime.test_lora import NUM, drawn

DECODE = Step(StepKind.REAL, Phase.DECODE)
KIMI = kimi_like()
LAYOUT = random_layout(KIMI, (KIMI.num_experts + 1,), seed=1)
Around = Callable[[], AbstractContextManager[object]]


def autocast() -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def inference() -> AbstractContextManager[object]:
    return torch.inference_mode()


def built(
    shape: StackShape = KIMI,
    *,
    dtype: torch.dtype = torch.float32,
    packing: Packing | None = None,
    traffic: Traffic | None = None,
) -> MoeRuntime:
    return MoeRuntime(
        SyntheticModel(shape, gates_shared=shape.num_shared > 0),
        random_layout(shape, (shape.num_experts + 1,), seed=1).start(0),
        peers=Alone(),
        mode=traffic or ExchangeMode.ALL_TO_ALL,
        dtype=dtype,
        packing=packing or Packing(),
    )


def step_of(runtime: MoeRuntime, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = runtime.model.shape
    ids = TokenIds(torch.arange(5) % VOCABULARY)
    batch = Batch.of(tokens(shape, 5, seed=2).to(dtype), ByGate(), DECODE)
    return runtime.forward(replace(batch, token_ids=ids))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_autocast_around_a_step_changes_no_bit_of_any_routing(
    kind: str, dtype: torch.dtype
) -> None:
    shape = replace(stack_of(KINDS[kind]), biased=True)
    runtime = built(shape, dtype=dtype)
    with autocast():
        inside = step_of(runtime, dtype)
        whole = step_of(built(shape, dtype=dtype), dtype)
    assert inside.dtype == dtype
    assert torch.equal(inside, step_of(runtime, dtype))
    assert torch.equal(inside, whole)


@pytest.mark.parametrize("weights", WeightFormat)
def test_autocast_around_construction_and_steps_changes_no_bit_of_any_format(
    weights: WeightFormat,
) -> None:
    shape = replace(KIMI, latent=LatentShape(16), shared_packing=Packing(weights))
    with autocast():
        inside, expert = (r := built(shape, packing=Packing(weights))), r.expert(1, 3)
        y = step_of(inside)
    outside = built(shape, packing=Packing(weights))
    for name, stack in outside.expert(1, 3).named().items():
        assert torch.equal(stack.view(torch.uint8), expert.named()[name].view(torch.uint8))
    assert torch.equal(y, step_of(outside))


@pytest.mark.parametrize("around", [autocast, inference])
def test_adapters_are_loaded_and_used_in_any_surroundings(around: Around) -> None:
    traffic = Traffic(mode=ExchangeMode.ALL_TO_ALL, num_adapters=NUM)
    one, other = built(traffic=traffic), built(traffic=traffic)
    one.load_adapters(drawn())
    with around():
        other.load_adapters(drawn())
    batch = replace(
        Batch.of(tokens(KIMI, 4, seed=2), ByGate(), DECODE),
        adapters=AdapterIds(torch.tensor([0, 1, -1, 0])),
    )
    plain = one.forward(batch)
    with around():
        assert torch.equal(one.forward(batch), plain)
    assert torch.equal(other.forward(batch), plain)


@pytest.mark.parametrize("around", [nullcontext, inference], ids=["outside", "inside"])
@pytest.mark.parametrize("mode", ExchangeMode)
def test_a_runtime_built_in_inference_mode_serves_in_and_out_of_it(
    mode: ExchangeMode, around: Around
) -> None:
    with inference():
        runtime = built(traffic=Traffic(mode=mode))
    plain = step_of(built(traffic=Traffic(mode=mode)))
    with around():
        first = step_of(runtime)
    second = step_of(runtime)
    with inference():
        third = step_of(runtime)
    assert all(torch.equal(y, plain) for y in (first, second, third))
    assert runtime.counters().steps_G[StepKind.REAL] == 3


def test_a_thread_that_moves_weights_writes_to_what_was_built_in_inference_mode() -> None:
    with inference():
        runtime = built()
    held = runtime.held()
    written: list[bool] = []

    def move() -> None:
        for name, row in runtime.slots.staging_tensors(0).items():
            row.copy_(runtime.expert(0, 3).named()[name][0])
        runtime.slots.expert_tensors(0, 0)["w2"].mul_(1)
        written.append(True)

    thread = Thread(target=move)
    thread.start()
    thread.join()
    assert written
    new = held[0].copy()
    spare = next(i for i, e in enumerate(new) if (new == e).sum() > 1)
    new[spare] = 3
    with inference():
        runtime.install(0, [Install(spare, 0)], new)
        table = [[int(np.flatnonzero(new == e)[0])] for e in range(KIMI.num_experts)]
        runtime.set_table(0, table)
    runtime.set_table(0, table)
    assert torch.equal(step_of(runtime), step_of(built()))


def test_a_model_whose_tensors_are_of_inference_mode_is_served() -> None:
    with inference():
        parts = SyntheticModel(KIMI).layer(0, torch.float32)
    assert parts.gate_XD.is_inference()
    assert not at_home(parts, torch.device("cpu")).gate_XD.is_inference()


def test_default_types_of_the_process_change_no_bit() -> None:
    batch = Batch.of(tokens(KIMI, 5, seed=2), ByGate(), DECODE)
    plain, before = built().forward(batch), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(built().forward(batch), plain)
    finally:
        torch.set_default_dtype(before)
