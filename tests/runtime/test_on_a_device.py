"""A rank computes on the device that its owner chose, and never on another one in its place.

The Ascend backend runs here on emulated kernels, in a memory apart from the host's: no NPU takes
part, and nothing is said about one.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_ffn import Arrangements
from moe_runtime.backends.streams import StreamTimeline
from moe_runtime.contracts.errors import MomentMissed, Unsupported
from moe_runtime.contracts.npu_errors import (
    NpuUnavailable,
    UnknownDevice,
    WrongMemory,
)
from moe_runtime.contracts.timeline import Moment
from moe_runtime.exchange.choosing import Capability, SocFamily
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.formats.families import family_of
from moe_runtime.runtime import (
    CPU,
    Alone,
    Batch,
    ByGate,
    ByTable,
    DenseReference,
    Device,
    ExchangeMode,
    Install,
    MoeRuntime,
    Nodes,
    Packing,
    Peers,
    Phase,
    Replicated,
    Start,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
    WeightFormat,
    open_device,
    peers_of,
)
from moe_runtime.runtime.npu_device import NpuDevice
from tests.npu.emulation import KERNELS
from tests.runtime.apart import HOME, PeersApart, apart, on_host, operators_apart
from tests.runtime.stacks import Layout, kimi_like, random_layout, tokens
from tests.runtime.threads import ThreadPeers, run_threads

SHAPE = kimi_like()
DECODE = Step(StepKind.REAL, Phase.DECODE)
PLAIN = (ExchangeMode.ALL_GATHER, ExchangeMode.ALL_TO_ALL)


class Order:
    """Meets `Streams`: what would be done, in words."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._on = "main"
        self._events = 0

    def record(self) -> object:
        self._events += 1
        self.done.append(f"{self._on} records {self._events}")
        return self._events

    def wait(self, event: object) -> None:
        self.done.append(f"{self._on} waits for {event}")

    @contextmanager
    def second(self) -> Generator[None]:
        self._on = "second"
        yield
        self._on = "main"


def far_device(kind: DeviceKind = DeviceKind.A3) -> NpuDevice:
    def lane() -> AbstractContextManager[None]:
        return nullcontext()

    backend = NpuBackend(NpuDoor(operators_apart(KERNELS), HOME))
    return NpuDevice(kind, backend, None, Order(), lane, Arrangements(backend.door))


def start_of(layout: Layout, rank: int, device: Device) -> Start:
    base = layout.start(rank)
    return Start(base.layout, base.held_LS, base.tables_LEJ, base.staging_rows, device)


def runtime_on(
    device: Device,
    layout: Layout,
    peers: Peers,
    mode: ExchangeMode | Traffic,
    weights: WeightFormat = WeightFormat.UNQUANTISED,
) -> MoeRuntime:
    dtype = torch.float32 if weights is WeightFormat.UNQUANTISED else torch.bfloat16
    return MoeRuntime(
        SyntheticModel(SHAPE),
        start_of(layout, peers.rank, device),
        peers=peers,
        mode=mode,
        dtype=dtype,
        packing=Packing(weights),
    )


def batch_far(num_tokens: int, *, seed: int) -> Batch:
    return Batch.of(tokens(SHAPE, num_tokens, seed=seed), ByGate(), DECODE).at(HOME)


@pytest.mark.parametrize("mode", PLAIN)
def test_two_ranks_of_the_ascend_backend_give_the_dense_reference(mode: ExchangeMode) -> None:
    """Weights, tables, counters and tokens stay in the device's memory in every stage."""
    layout = random_layout(SHAPE, (6, 5), seed=3, num_empty=1, num_choices=2)

    def work(peers: ThreadPeers) -> tuple[torch.Tensor, int]:
        with apart():
            runtime = runtime_on(far_device(), layout, PeersApart(peers), mode)
            out = on_host(runtime.forward(batch_far(5 * peers.rank, seed=7)))
            counted = runtime.counters()
        assert counted.sent_HLE.sum() == 5 * peers.rank * SHAPE.selector.top_k * SHAPE.num_layers
        return out, int(counted.received_HLS.sum())

    (none, received), (out, rest) = run_threads(work, num_ranks=2)
    assert none.shape == (0, SHAPE.width)
    assert received + rest == 5 * SHAPE.selector.top_k * SHAPE.num_layers
    right = DenseReference(SyntheticModel(SHAPE)).forward(tokens(SHAPE, 5, seed=7), ByGate())
    torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-4)


def test_teams_that_hold_their_tokens_alike_compute_them_once_on_a_device() -> None:
    drawn = random_layout(SHAPE, (6, 5), seed=3)
    alike = np.repeat(drawn.tables_NLEJ[:1], 2, axis=0)
    layout = replace(drawn, tables_NLEJ=alike)
    traffic = Traffic(mode=ExchangeMode.ALL_GATHER, spread=Replicated(2))

    def work(peers: ThreadPeers) -> torch.Tensor:
        with apart():
            runtime = runtime_on(far_device(), layout, PeersApart(peers), traffic)
            return on_host(runtime.forward(batch_far(4, seed=9)))

    one, other = run_threads(work, num_ranks=2)
    assert torch.equal(one, other)
    right = DenseReference(SyntheticModel(SHAPE)).forward(tokens(SHAPE, 4, seed=9), ByGate())
    torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-4)


def test_a_move_on_a_device_changes_nothing_but_where_experts_are_computed() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts + 1,), seed=1, num_empty=1)
    with apart():
        runtime = runtime_on(far_device(), layout, PeersApart(Alone()), ExchangeMode.ALL_GATHER)
        before = on_host(runtime.forward(batch_far(6, seed=2)))
        held = runtime.held()[0]
        empty, expert = int(np.flatnonzero(held < 0)[0]), int(held[held >= 0][0])
        source = int(np.flatnonzero(held == expert)[0])
        for name, row in runtime.slots.staging_tensors(0).items():
            row.copy_(runtime.slots.expert_tensors(0, source)[name])
        moved, table = held.copy(), runtime.tables()[0]
        moved[empty], moved[source], table[expert] = expert, -1, empty
        runtime.install(0, [Install(empty, 0)], moved)
        runtime.set_table(0, table)
        after = on_host(runtime.forward(batch_far(6, seed=2)))
        assert runtime.counters().received_HLS[:, 0, empty].sum() > 0
    assert torch.equal(before, after)


def test_a_profile_step_and_zero_rows_stay_on_the_device() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    with apart():
        runtime = runtime_on(far_device(), layout, PeersApart(Alone()), ExchangeMode.ALL_TO_ALL)
        given = batch_far(4, seed=2)
        profile = Batch(given.x_TD, given.real_T, ByGate(), Step(StepKind.PROFILE, Phase.PREFILL))
        assert on_host(runtime.forward(profile)).isfinite().all()
        assert runtime.counters().received_HLS.sum() == 0


def test_tokens_of_the_host_are_refused_by_a_runtime_on_a_device() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    with apart():
        runtime = runtime_on(far_device(), layout, PeersApart(Alone()), ExchangeMode.ALL_GATHER)
        given = Batch.of(tokens(SHAPE, 3, seed=1), ByGate(), DECODE)
        with pytest.raises(WrongMemory, match="x_TD is on cpu, but this rank computes on meta"):
            runtime.forward(given)


def test_w8a8_goes_through_the_same_door() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    with apart():
        runtime = runtime_on(
            far_device(),
            layout,
            PeersApart(Alone()),
            ExchangeMode.ALL_GATHER,
            WeightFormat.W8A8,
        )
        got = on_host(runtime.forward(batch_far(6, seed=2)))
    plain = runtime_on(CPU, layout, Alone(), ExchangeMode.ALL_GATHER, WeightFormat.W8A8)
    right = plain.forward(Batch.of(tokens(SHAPE, 6, seed=2), ByGate(), DECODE))
    missed, size = ((t.double().square().sum()) for t in (got - right, right))
    off = float((missed / size).sqrt())
    # Scales of weights are rounded to bfloat16 on the device, and int8 rows may differ by a step.
    assert off < 2 * (2**-8 + 2 / 254)


@pytest.mark.parametrize(
    ("mode", "weights", "says"),
    [
        (ExchangeMode.FUSED_MC2, WeightFormat.W8A8, "opened for one rank alone"),
        (ExchangeMode.FUSED_MC2, WeightFormat.W4A8, "fused MC2 of W4A8 is not built"),
        (ExchangeMode.MC2, WeightFormat.W8A8, "opened for one rank alone"),
        (ExchangeMode.ALL_GATHER, WeightFormat.W4A8_MXFP, "float8 and float4 need an A5"),
        (
            ByTable(soc=SocFamily.A2, format="w8a8", capabilities=frozenset({Capability.MC2})),
            WeightFormat.W8A8,
            "asked for A2, but the device is ascend-a3",
        ),
    ],
)
def test_what_the_backend_has_not_is_refused_at_load(
    mode: ExchangeMode | ByTable, weights: WeightFormat, says: str
) -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    with apart(), pytest.raises(Unsupported, match=says):
        runtime_on(far_device(), layout, PeersApart(Alone()), Traffic(mode=mode), weights)


@pytest.mark.parametrize(
    ("kind", "per_node", "says"),
    [
        (DeviceKind.A5, 8, "hierarchical MC2 is of A2 and A3 only"),
        (DeviceKind.A2, 4, "takes nodes of 8 ranks, not of 4"),
    ],
)
def test_nodes_that_the_operators_do_not_know_are_refused(
    kind: DeviceKind, per_node: int, says: str
) -> None:
    traffic = Traffic(mode=ExchangeMode.MC2, nodes=Nodes(per_node))
    assert says in "; ".join(far_device(kind).refusals(traffic))
    eight = Traffic(mode=ExchangeMode.MC2, nodes=Nodes(8))
    assert not [r for r in far_device(DeviceKind.A2).refusals(eight) if "nodes" in r]


def test_without_an_npu_nothing_is_opened_in_its_place() -> None:
    with pytest.raises(NpuUnavailable, match="nothing is computed on the CPU in its place"):
        open_device("npu:0")


@pytest.mark.parametrize("name", ["npu", "npu:", "npu:-1", "npu:x", "gpu:0", "", "CPU"])
def test_a_name_that_no_device_has_is_refused(name: str) -> None:
    with pytest.raises(UnknownDevice, match="expected cpu, or npu:NUMBER"):
        open_device(name)


def test_the_cpu_is_there_when_it_is_asked_for() -> None:
    assert open_device("cpu") is CPU
    assert isinstance(peers_of(CPU), Alone)


def test_a_chip_is_known_by_its_name_or_refused() -> None:
    assert family_of("Ascend310P3") is DeviceKind.P310
    assert family_of("Ascend950PR_9589") is DeviceKind.A5
    with pytest.raises(NpuUnavailable, match="Ascend910A"):
        family_of("Ascend910A")


def test_work_beside_waits_on_its_own_stream_and_the_main_one_waits_for_it_once() -> None:
    order = Order()
    timeline = StreamTimeline(order)
    timeline.mark(Moment.ROUTED)
    timeline.mark(Moment.ROUTED)
    timeline.mark(Moment.DISPATCH)
    with timeline.beside():
        timeline.wait(Moment.DISPATCH)
        with pytest.raises(MomentMissed):
            timeline.wait(Moment.DOWN)
    timeline.join()
    assert order.done == [
        "main records 1",
        "main records 2",
        "second waits for 2",
        "second records 3",
        "main waits for 3",
    ]
