"""Shared experts in slots: computed by whoever holds them, counted apart, never chosen.

Axes    L layers   S local slots   E routed experts   M shared experts   T tokens   D width
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_runtime.contracts.errors import (
    BadInstall,
    BadTable,
    EmptySlotReached,
    ImpossibleRouting,
    ShapeMismatch,
    Unsupported,
)
from moe_runtime.contracts.exchange_errors import BeyondLimit, RanksDisagree
from moe_runtime.exchange.limits import Limits
from moe_runtime.layer.parts import rms_norm
from moe_runtime.runtime import (
    EMPTY,
    IN_SLOTS,
    Alone,
    Batch,
    ByGate,
    Captured,
    DenseReference,
    ExchangeMode,
    Install,
    LatentShape,
    MoeRuntime,
    Packing,
    Peers,
    Phase,
    Replicated,
    StackShape,
    Start,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from moe_runtime.runtime.tracing import traced_layer
from tests.runtime.mixed import DECODE, MIXED, ROUTED, SHARED, Mixed, serve
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import tokens
from tests.runtime.threads import run_threads


@settings(max_examples=25)
@given(
    mode=st.sampled_from(ExchangeMode),
    slots=st.lists(st.integers(4, 9), min_size=1, max_size=3).filter(lambda s: sum(s) >= 10),
    kind=st.sampled_from(["sigmoid corrected", "softmax in groups", "zero experts"]),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_shared_experts_in_slots_give_what_they_give_beside_routed_ones(
    mode: ExchangeMode, slots: list[int], kind: str, seed: int, data: st.DataObject
) -> None:
    rows_N = data.draw(st.tuples(*[st.integers(0, 4) for _ in slots]), label="rows")
    routed = stack_of(KINDS[kind])
    shape = replace(routed, num_shared=SHARED, shared_packing=IN_SLOTS)
    mixed = Mixed.drawn(shape, tuple(slots), seed=seed)
    outs = run_threads(
        lambda peers: serve(peers, mixed, rows_N, mode, shape=shape), num_ranks=len(slots)
    )
    reference = DenseReference(SyntheticModel(shape, gates_shared=True))
    for rank, out in enumerate(outs):
        right = reference.forward(tokens(shape, rows_N[rank], seed=rank), ByGate())
        torch.testing.assert_close(out.y_TD.double(), right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ExchangeMode)
def test_their_load_is_kept_apart_and_every_row_of_it_arrives(mode: ExchangeMode) -> None:
    mixed, rows_N = Mixed.drawn(MIXED, (7, 6), seed=5), (4, 3)
    outs = run_threads(lambda peers: serve(peers, mixed, rows_N, mode), num_ranks=2)
    for rank, out in enumerate(outs):
        sent = out.counters.sent_HLE[Phase.DECODE]
        assert sent.shape == (MIXED.num_layers, ROUTED)
        assert (sent.sum(axis=1) == rows_N[rank] * MIXED.selector.top_k).all()
        assert (out.counters.shared_HLM[Phase.DECODE] == rows_N[rank]).all()
        assert out.counters.shared_HLM.shape == (2, MIXED.num_layers, SHARED)
    received = np.concatenate([o.counters.received_HLS[Phase.DECODE] for o in outs], axis=1)
    for layer, phy2log_P in enumerate(mixed.phy2log_LP):
        for shared in range(ROUTED, ROUTED + SHARED):
            assert received[layer, phy2log_P == shared].sum() == sum(rows_N)


def test_profile_and_dummy_steps_send_to_them_and_count_nothing() -> None:
    runtime = alone()
    x_TD = tokens(MIXED, 5, seed=1)
    runtime.forward(Batch.of(x_TD, ByGate(), Step(StepKind.PROFILE, Phase.PREFILL)))
    runtime.forward(Batch.dummy(MIXED.width))
    counted = runtime.counters()
    assert not counted.received_HLS.any()
    assert not counted.shared_HLM.any()


def test_captured_ids_are_those_that_the_router_chose() -> None:
    class Sink:
        def __init__(self) -> None:
            self.taken: list[Captured] = []

        def take(self, captured: Captured) -> None:
            self.taken.append(captured)

    sink = Sink()
    mixed = Mixed.drawn(MIXED, (12,), seed=2)
    traffic = Traffic(mode=ExchangeMode.ALL_TO_ALL, capture=sink)
    out = serve(Alone(), mixed, (6,), traffic)
    (captured,) = sink.taken
    assert captured.experts_TLK.shape == (6, MIXED.num_layers, MIXED.selector.top_k)
    for layer in range(MIXED.num_layers):
        counts = np.bincount(captured.experts_TLK[:, layer].reshape(-1), minlength=ROUTED)
        assert (counts == out.counters.sent_HLE[Phase.DECODE, layer]).all()


@pytest.mark.parametrize("stored", WeightFormat)
def test_every_format_stores_them_as_it_stores_routed_ones(stored: WeightFormat) -> None:
    """Beside routed experts, in the same format, they give the same to the last bit or so."""
    shape = replace(MIXED, width=40, intermediate=24, activation=SwiGLU())
    packing = Packing(stored)
    mixed = Mixed.drawn(shape, (12,), seed=3)
    mode = ExchangeMode.ALL_TO_ALL
    got = serve(Alone(), mixed, (5,), mode, shape=shape, packing=packing).y_TD
    beside = replace(shape, shared_packing=packing)
    held = np.where(mixed.phy2log_LP >= ROUTED, EMPTY, mixed.phy2log_LP)
    start = Start(mixed.layout, held, mixed.tables_NLEJ[0], 1)
    model = SyntheticModel(beside, gates_shared=True)
    runtime = MoeRuntime(model, start, peers=Alone(), mode=mode, packing=packing)
    right = runtime.forward(Batch.of(tokens(shape, 5, seed=0), ByGate(), DECODE))
    assert torch.allclose(got, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


def test_experts_with_biases_add_none_to_shared_ones() -> None:
    shape = replace(MIXED, biased=True)
    mixed = Mixed.drawn(shape, (12,), seed=3)
    got = serve(Alone(), mixed, (5,), ExchangeMode.MC2, shape=shape).y_TD
    reference = DenseReference(SyntheticModel(shape, gates_shared=True))
    right = reference.forward(tokens(shape, 5, seed=0), ByGate())
    torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=1e-4)


def alone(*, shape: StackShape = MIXED, seed: int = 4) -> MoeRuntime:
    mixed = Mixed.drawn(shape, (13,), seed=seed)
    model = SyntheticModel(shape, gates_shared=True)
    return MoeRuntime(model, mixed.start(0), peers=Alone(), mode=ExchangeMode.ALL_TO_ALL)


def test_a_shared_expert_moves_like_any_other_and_the_output_stays() -> None:
    runtime = alone()
    given = Batch.of(tokens(MIXED, 5, seed=1), ByGate(), DECODE)
    before = runtime.forward(given)
    held, shared = runtime.held()[0], runtime.routes.shared()[0]
    target, source = int(np.flatnonzero(held == EMPTY)[0]), int(shared[0])
    for name, row in runtime.slots.staging_tensors(0).items():
        row.copy_(runtime.slots.expert_tensors(0, source)[name])
    held[target], held[source], shared[0] = ROUTED, EMPTY, target
    runtime.install(0, [Install(target, 0)], held)
    with pytest.raises(EmptySlotReached):
        runtime.forward(given)
    runtime.routes.set_shared(0, shared)
    assert torch.equal(runtime.forward(given), before)


def test_a_shared_expert_is_not_looked_for_where_it_is_not() -> None:
    runtime = alone()
    held, shared = runtime.held()[0], runtime.routes.shared()[0]
    wrong = shared.copy()
    wrong[1] = int(np.flatnonzero(held != ROUTED + 1)[0])
    with pytest.raises(BadTable, match=r"experts \[9\] are sent to slots of rank 0"):
        runtime.routes.set_shared(0, wrong)
    with pytest.raises(BadTable, match="outside"):
        runtime.routes.set_shared(0, np.array([0, 99]))
    assert (runtime.routes.shared()[0] == shared).all()


def test_teams_that_use_different_replicas_are_refused() -> None:
    """Ranks that hold their tokens alike would compute one twice, or never."""
    mixed = Mixed.drawn(MIXED, (13, 13), seed=1)
    alike = replace(mixed, tables_NLEJ=np.repeat(mixed.tables_NLEJ[:1], 2, axis=0))
    homes = np.flatnonzero(mixed.phy2log_LP[0] == ROUTED)
    assert len(homes) > 1, homes
    shared = np.repeat(mixed.shared_NLM[:1], 2, axis=0)
    traffic = Traffic(mode=ExchangeMode.ALL_GATHER, spread=Replicated(2))
    right = replace(alike, shared_NLM=shared.copy())
    outs = run_threads(
        lambda peers: serve(peers, right, (3, 3), traffic, are_alike=True), num_ranks=2
    )
    assert torch.equal(outs[0].y_TD, outs[1].y_TD)
    shared[:, 0, 0] = homes[:2]
    wrong = replace(alike, shared_NLM=shared)

    def refused(peers: Peers) -> None:
        with pytest.raises(RanksDisagree, match="dispatch tables"):
            serve(peers, wrong, (3, 3), traffic, are_alike=True)

    run_threads(refused, num_ranks=2)


REFUSED: list[tuple[str, Callable[[], StackShape], str]] = [
    ("none", lambda: replace(MIXED, num_shared=0), "there are no shared experts"),
    ("latent", lambda: replace(MIXED, latent=LatentShape(8)), "read the model's full width"),
    (
        "on input",
        lambda: replace(stack_of(KINDS["custom on input"]), num_shared=1, shared_packing=IN_SLOTS),
        "a row carries its one expert's weight",
    ),
]


@pytest.mark.parametrize(("make", "says"), [(m, s) for _, m, s in REFUSED])
def test_models_that_cannot_have_them_in_slots_are_refused(
    make: Callable[[], StackShape], says: str
) -> None:
    with pytest.raises(ImpossibleRouting, match=says):
        make()


def test_the_operators_limit_counts_them_among_a_tokens_experts() -> None:
    mixed = Mixed.drawn(MIXED, (12,), seed=1)
    traffic = Traffic(mode=ExchangeMode.MC2, limits=Limits(top_k=MIXED.selector.top_k + 1))
    with pytest.raises(BeyondLimit, match="experts per token: 5"):
        serve(Alone(), mixed, (2,), traffic)


def test_adapters_are_refused_beside_them() -> None:
    mixed = Mixed.drawn(MIXED, (12,), seed=1)
    traffic = Traffic(mode=ExchangeMode.ALL_TO_ALL, num_adapters=1)
    with pytest.raises(Unsupported, match="shared experts in slots have no adapters"):
        serve(Alone(), mixed, (2,), traffic)


def test_a_rank_that_starts_without_their_slots_is_refused() -> None:
    start = Mixed.drawn(MIXED, (12,), seed=1).start(0)
    with pytest.raises(ShapeMismatch, match="shared_LM"):
        MoeRuntime(
            SyntheticModel(MIXED),
            replace(start, shared_LM=()),
            peers=Alone(),
            mode=ExchangeMode.ALL_TO_ALL,
        )


def test_a_slot_cannot_hold_an_expert_that_no_model_has() -> None:
    runtime = alone()
    held = runtime.held()[0]
    held[0] = ROUTED + SHARED
    with pytest.raises(BadInstall, match=r"there is no expert \[10\]: there are 10"):
        runtime.install(0, [Install(0, 0)], held)


def test_a_traced_layer_has_them_too() -> None:
    shape = replace(MIXED, num_layers=1)
    runtime = alone(shape=shape)
    x_TD = tokens(shape, 5, seed=1)
    layer = traced_layer(runtime, 0)
    got = layer(rms_norm(x_TD), torch.ones(5, dtype=torch.bool), torch.tensor([0, 1]))
    layer.refuse_faults()
    counted = runtime.counters()
    assert (counted.shared_HLM[Phase.DECODE, 0] == 5).all()
    assert counted.sent_HLE.sum() == 5 * shape.selector.top_k
    right = alone(shape=shape).forward(Batch.of(x_TD, ByGate(), DECODE))
    assert torch.allclose(x_TD + got, right, rtol=1e-5, atol=1e-5)
