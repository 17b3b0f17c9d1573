"""LoRA on a device: adapters are beside its weights, and the host never asks which rows use them.

The Ascend backend runs here on emulated kernels, in a memory apart from the host's: no NPU takes
part, and nothing is said about one.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import Unsupported
from moe_runtime.contracts.npu_errors import WrongMemory
from moe_runtime.runtime import (
    NO_ADAPTER,
    AdapterIds,
    Alone,
    Batch,
    ByGate,
    ExchangeMode,
    MoeRuntime,
    Packing,
    Phase,
    Step,
    StepKind,
    SyntheticModel,
    WeightFormat,
)
from tests.runtime.apart import HOME, PeersApart, apart, on_host
from tests.runtime.stacks import random_layout, tokens
from tests.runtime.test_lora import GATHER, NUM, drawn, right_of
from tests.runtime.test_on_a_device import SHAPE, batch_far, far_device, runtime_on, start_of
from tests.runtime.threads import ThreadPeers, run_threads

DECODE = Step(StepKind.REAL, Phase.DECODE)


def ids_of(num_tokens: int) -> Tensor:
    return torch.arange(num_tokens) % (NUM + 1) - 1


@pytest.mark.parametrize("mode", [ExchangeMode.ALL_GATHER, ExchangeMode.ALL_TO_ALL])
def test_two_ranks_of_the_ascend_backend_give_each_token_its_adapter(mode: ExchangeMode) -> None:
    """Two ranks, uneven, one of them without tokens in its second step."""
    layout = random_layout(SHAPE, (6, 5), seed=3, num_empty=1, num_choices=2)

    def work(peers: ThreadPeers) -> list[Tensor]:
        with apart():
            traffic = replace(GATHER, mode=mode)
            runtime = runtime_on(far_device(), layout, PeersApart(peers), traffic)
            runtime.load_adapters(drawn())
            outs: list[Tensor] = []
            for num_tokens in (3 + 4 * peers.rank, 5 * peers.rank):
                given = batch_far(num_tokens, seed=peers.rank)
                ids = AdapterIds(ids_of(num_tokens).to(HOME))
                outs.append(on_host(runtime.forward(replace(given, adapters=ids))))
            return outs

    for rank, outs in enumerate(run_threads(work, num_ranks=2)):
        for out in outs:
            x_TD = tokens(SHAPE, out.shape[0], seed=rank)
            right = right_of(x_TD, ids_of(out.shape[0]), Packing())
            torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-4)


def test_numbers_of_adapters_in_the_hosts_memory_are_refused() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    with apart():
        runtime = runtime_on(far_device(), layout, PeersApart(Alone()), GATHER)
        runtime.load_adapters(drawn())
        given = replace(batch_far(4, seed=1), adapters=AdapterIds(ids_of(4)))
        with pytest.raises(WrongMemory, match="adapters is on cpu"):
            runtime.forward(given)


def test_mc2_of_a_device_carries_no_number_of_an_adapter_and_says_so() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    with apart(), pytest.raises(Unsupported, match="MC2's operators carry no number"):
        MoeRuntime(
            SyntheticModel(SHAPE),
            start_of(layout, 0, far_device()),
            peers=PeersApart(Alone()),
            mode=replace(GATHER, mode=ExchangeMode.MC2),
            dtype=torch.bfloat16,
            packing=Packing(WeightFormat.UNQUANTISED),
        )


def test_adapters_that_their_owner_changes_later_are_served_as_they_were_loaded() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    runtime = MoeRuntime(
        SyntheticModel(SHAPE),
        layout.start(0),
        peers=Alone(),
        mode=GATHER,
        dtype=torch.float64,
    )
    loaded = drawn()
    runtime.load_adapters(loaded)
    x_TD = tokens(SHAPE, 6, seed=2).double()
    batch = replace(Batch.of(x_TD, ByGate(), DECODE), adapters=AdapterIds(ids_of(6)))
    before = runtime.forward(batch)
    for layer in loaded:
        layer.b2_NEZR.zero_()
    assert torch.equal(runtime.forward(batch), before)
    assert NO_ADAPTER in ids_of(6)
