"""Layers inside vLLM get their parts by the family of the device that they are built on.

The Ascend backend runs here on emulated kernels, in a memory apart from the host's: no NPU takes
part, and nothing is said about one.
"""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from moe_runtime.backends import npu
from moe_runtime.backends.npu import Installation
from moe_runtime.backends.npu_backend import NpuBackend, NpuBackend310
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.npu_errors import NpuUnavailable
from moe_runtime.contracts.step import Phase, StepKind
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.exchange.npu_all_gather import NpuAllGatherExchange
from moe_runtime.exchange.npu_all_to_all import NpuAllToAllExchange
from moe_runtime.exchange.peers import Alone
from moe_runtime.experts.activations import Activation, SwiGLU, SwiGLUStep
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.layer.passage import Staged
from moe_runtime.placement.maps import SlotLayout
from moe_runtime.routing.kinds import Uncorrected
from moe_runtime.routing.router import GatingPath
from moe_runtime.vllm import CannotOwn, families
from moe_runtime.vllm.binding import Loaded, bind_stack
from moe_runtime.vllm.families import CPU_PARTS, AscendParts, Parts, parts_on
from moe_runtime.vllm.judging import require_on_device
from moe_runtime.vllm.reading import Reading
from moe_runtime.vllm.seams import Runner
from moe_runtime.vllm.stack import Ranks, StackFacts, StepScope
from tests.npu.emulation import KERNELS
from tests.runtime.apart import HOME, PeersApart, apart, on_host, operators_apart
from tests.runtime.test_on_a_310p import counted_in_32_bits
from tests.runtime.test_vllm_owned import Silent
from tests.runtime.threads import ThreadPeers, run_threads

LAYER = "model.layers.0.mlp.experts"
WIDTH, EXPERT_WIDTH, NUM_EXPERTS, TOP_K, NUM_RANKS = 32, 16, 8, 2, 2
NUM_ROWS, NUM_REAL = 6, 5
SELECTOR = SelectorSettings(
    num_experts=NUM_EXPERTS, top_k=TOP_K, scoring=Scoring.SOFTMAX, renormalise=True
)
CHIPS = {
    "Ascend910B3": DeviceKind.A2,
    "Ascend910_9391": DeviceKind.A3,
    "Ascend950PR_9589": DeviceKind.A5,
    "Ascend310P3": DeviceKind.P310,
}


@pytest.fixture
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """Of a chip that answers by its name, on emulated kernels."""
    soc: str = request.param

    def opened(index: int) -> tuple[NpuBackend, Installation]:
        assert index == 0
        kernels = KERNELS
        if "310P" in soc:
            kernels = {**KERNELS, "npu_moe_init_routing_v2": counted_in_32_bits}
        door = NpuDoor(operators_apart(kernels), HOME)
        backend = NpuBackend310(door) if "310P" in soc else NpuBackend(door)
        return backend, Installation("2.13.0", soc, (), 1, "")

    monkeypatch.setattr(npu, "open_npu", opened)
    families._ascend.cache_clear()  # pyright: ignore[reportPrivateUsage]
    made = parts_on("npu:0", LAYER)
    families._ascend.cache_clear()  # pyright: ignore[reportPrivateUsage]
    return made


@pytest.mark.parametrize("parts", CHIPS, indirect=True, ids=str)
def test_a_family_has_its_own_way_and_its_own_gating(
    parts: Parts, request: pytest.FixtureRequest
) -> None:
    assert isinstance(parts, AscendParts)
    is_old = "310P" in request.node.name
    assert parts.kind is CHIPS[request.node.callspec.params["parts"]]
    assert parts.home == HOME
    assert parts.gating(SELECTOR) is (
        GatingPath.REFERENCE if is_old else GatingPath.FUSED_WHERE_LEGAL
    )
    passage = parts.exchange(Alone(), SlotLayout((NUM_EXPERTS,)))
    way = NpuAllGatherExchange if is_old else NpuAllToAllExchange
    assert isinstance(cast("Staged[object]", passage).exchange, way)


@pytest.mark.parametrize("is_replicated", [False, True], ids=["own", "replicated"])
@pytest.mark.parametrize("parts", CHIPS, indirect=True, ids=str)
def test_two_ranks_of_a_family_compute_what_two_of_the_cpu_do(
    parts: Parts, *, is_replicated: bool
) -> None:
    """Weights, tables, counters and tokens stay in the device's memory in every stage."""

    def far(peers: ThreadPeers) -> tuple[Tensor, int]:
        with apart():
            return served(parts, peers, is_replicated=is_replicated)

    def near(peers: ThreadPeers) -> tuple[Tensor, int]:
        return served(CPU_PARTS, peers, is_replicated=is_replicated)

    got, want = (run_threads(work, num_ranks=NUM_RANKS) for work in (far, near))
    for (y_TZ, received), (right_TZ, expected) in zip(got, want, strict=True):
        tolerance = 2e-2 if parts.kind is DeviceKind.P310 else 1e-5
        torch.testing.assert_close(y_TZ.float(), right_TZ, rtol=tolerance, atol=tolerance)
        assert received == expected


def served(parts: Parts, peers: ThreadPeers, *, is_replicated: bool) -> tuple[Tensor, int]:
    """Return what one rank of a stack computes, and what its slots received."""
    is_far, num_slots = parts.home == HOME, NUM_EXPERTS // NUM_RANKS + 1
    dtype = torch.float16 if parts.kind is DeviceKind.P310 else torch.float32
    draw = torch.Generator().manual_seed(3)
    w13 = torch.randn(NUM_EXPERTS, 2 * EXPERT_WIDTH, WIDTH, generator=draw) / 4
    w2 = torch.randn(NUM_EXPERTS, WIDTH, EXPERT_WIDTH, generator=draw) / 4
    rows = [torch.randn(NUM_ROWS, width, generator=draw) for width in (WIDTH, NUM_EXPERTS)]
    first = peers.rank * num_slots
    # Slots beyond the first of each expert have what a loader left there.
    own = [n % NUM_EXPERTS if n < NUM_EXPERTS else 0 for n in range(first, first + num_slots)]
    home = parts.home if is_far else torch.device("cpu")
    weights = DenseWeights(*(w[own].to(dtype).to(home) for w in (w13, w2)))
    group = PeersApart(peers) if is_far else peers
    sharing = group if is_replicated else Alone()
    bound = bind_stack(
        Loaded(
            StackFacts((LAYER,), NUM_EXPERTS, TOP_K, 1, home),
            [weights],
            [Reading(SELECTOR, Uncorrected(), SwiGLU())],
            [Silent()],
        ),
        Ranks(group, sharing, is_replicated=is_replicated, hosts=peers),
        staging_rows=1,
        parts=parts,
    )
    assert bound.num_filled == 2 * peers.rank
    bound.stack.enter(StepScope(StepKind.REAL, Phase.PREFILL, NUM_REAL))
    x_TZ, logits_TE = (row.to(dtype).to(home) for row in rows)
    y_TZ = bound.stack.forward(0, x_TZ, logits_TE, None)
    counters = bound.stack.counters()
    assert int(counters.tokens_H.sum()) == NUM_REAL
    return on_host(y_TZ) if is_far else y_TZ, int(counters.received_HLS.sum())


def asked(activation: Activation, dtype: torch.dtype) -> tuple[list[Runner], list[Reading]]:
    experts = SimpleNamespace(moe_config=SimpleNamespace(in_dtype=dtype), eplb_scheme=None)
    runner = SimpleNamespace(layer_name=LAYER, routed_experts=experts)
    return [cast("Runner", runner)], [Reading(SELECTOR, Uncorrected(), activation)]


@pytest.mark.parametrize("parts", ["Ascend310P3"], indirect=True)
def test_what_a_family_has_not_is_refused_when_the_model_is_bound(parts: Parts) -> None:
    ranks = Ranks(Alone(), Alone(), is_replicated=False)
    require_on_device(*asked(SwiGLU(), torch.float16), ranks, parts)
    with pytest.raises(CannotOwn, match=f"{LAYER}.*310P computes in float16 only") as refused:
        require_on_device(*asked(SwiGLUStep(), torch.bfloat16), ranks, parts)
    assert "310P computes SwiGLU without a limit only" in str(refused.value)
    require_on_device(*asked(SwiGLUStep(), torch.bfloat16), ranks, CPU_PARTS)


def test_a_device_that_does_not_answer_is_refused_and_not_computed_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(index: int) -> None:
        raise NpuUnavailable(f"NPU {index} is wanted and 0 answer")

    monkeypatch.setattr(npu, "open_npu", silent)
    families._ascend.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(CannotOwn, match=f"{LAYER}.*NPU 3 is wanted"):
        parts_on("npu:3", LAYER)


def test_experts_on_another_kind_of_device_are_refused_before_they_are_loaded() -> None:
    with pytest.raises(CannotOwn, match=f"{LAYER}.*its experts lie on cuda"):
        parts_on(torch.device("cuda", 1), LAYER)


def test_on_a_cpu_everything_is_there() -> None:
    assert parts_on("cpu", LAYER) is CPU_PARTS
    assert CPU_PARTS.exchanges_by is ExchangeMode.ALL_TO_ALL
    assert CPU_PARTS.moving([0, 1]) is None
