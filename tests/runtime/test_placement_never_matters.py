"""Placement decides where a token is computed, never what is computed."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from moe_runtime.runtime import (
    NO_TOKEN_IDS,
    Batch,
    ByGate,
    CounterSnapshot,
    DenseReference,
    ExchangeMode,
    GroupPeers,
    Install,
    MoeRuntime,
    Peers,
    Phase,
    StackShape,
    Step,
    StepKind,
    SyntheticModel,
    TokenIds,
)
from tests.runtime.ranks import run_ranks
from tests.runtime.routings import KINDS, stack_of, token_ids
from tests.runtime.stacks import IntArray, Layout, kimi_like, random_layout, tokens
from tests.runtime.threads import run_threads

TOLERANCE = 1e-5
DECODE = Step(StepKind.REAL, Phase.DECODE)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One step on every rank."""

    shape: StackShape
    layout: Layout
    mode: ExchangeMode
    rows: tuple[int, ...]
    """Tokens of each rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one rank got."""

    y_TD: Tensor
    counters: CounterSnapshot


def batch(run: Run, rank: int) -> Batch:
    if not run.rows[rank]:
        return Batch.dummy(run.shape.width)
    plain = Batch.of(tokens(run.shape, run.rows[rank], seed=rank), ByGate(), DECODE)
    return replace(plain, token_ids=token_ids(run.shape, run.rows[rank], seed=rank))


def serve(peers: Peers, run: Run) -> Outcome:
    runtime = MoeRuntime(
        SyntheticModel(run.shape), run.layout.start(peers.rank), peers=peers, mode=run.mode
    )
    return Outcome(runtime.forward(batch(run, peers.rank)), runtime.counters())


def token_errors(run: Run, outcomes: list[Outcome]) -> Tensor:
    """Return the largest error of each token, over its largest output."""
    reference = DenseReference(SyntheticModel(run.shape))
    batches = [batch(run, rank) for rank in range(len(run.rows))]
    known = [b.token_ids.ids_T for b in batches if isinstance(b.token_ids, TokenIds)]
    ids = TokenIds(torch.cat(known)) if known else NO_TOKEN_IDS
    want_TD = reference.forward(torch.cat([b.x_TD for b in batches]), ByGate(), ids)
    got_TD = torch.cat([outcome.y_TD for outcome in outcomes])
    assert got_TD.isfinite().all()
    return (got_TD - want_TD).abs().amax(dim=1) / want_TD.abs().amax(dim=1)


def assert_right(run: Run, outcomes: list[Outcome]) -> None:
    assert (token_errors(run, outcomes) < TOLERANCE).all()
    assert_conserved(run, outcomes)


def assert_conserved(run: Run, outcomes: list[Outcome]) -> None:
    sent = np.sum([outcome.counters.sent_HLE for outcome in outcomes], axis=0)
    received_HLP = np.concatenate([o.counters.received_HLS for o in outcomes], axis=2)
    for layer, phy2log_P in enumerate(run.layout.phy2log_LP):
        for expert in range(run.shape.num_experts):
            at_slots = received_HLP[:, layer, phy2log_P == expert].sum(axis=1)
            assert (at_slots == sent[:, layer, expert]).all()
    zero_L = np.sum([outcome.counters.zero_HL[Phase.DECODE] for outcome in outcomes], axis=0)
    pairs = sum(run.rows) * run.shape.selector.top_k
    assert (received_HLP[Phase.DECODE].sum(axis=1) + zero_L == pairs).all()
    assert not received_HLP[Phase.PREFILL].any()


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    slots=st.lists(st.integers(3, 8), min_size=1, max_size=4).filter(lambda s: sum(s) >= 8),
    mode=st.sampled_from(ExchangeMode),
    kind=st.sampled_from([None, *KINDS]),
    data=st.data(),
)
def test_any_placement_gives_the_reference_output(
    seed: int, slots: list[int], mode: ExchangeMode, kind: str | None, data: st.DataObject
) -> None:
    shape = kimi_like() if kind is None else stack_of(KINDS[kind])
    num_choices = data.draw(st.integers(1, 2), label="choices")
    num_empty = data.draw(st.integers(0, sum(slots) - shape.num_experts), label="empty")
    rows = data.draw(st.tuples(*[st.integers(0, 5) for _ in slots]), label="rows")
    layout = random_layout(
        shape, tuple(slots), seed=seed, num_empty=num_empty, num_choices=num_choices
    )
    run = Run(shape, layout, mode, rows)
    assert_right(run, run_threads(lambda peers: serve(peers, run), num_ranks=len(slots)))


@pytest.mark.parametrize("mode", ExchangeMode)
def test_a_token_sent_to_a_wrong_expert_is_off_by_more_than_one(mode: ExchangeMode) -> None:
    shape = replace(kimi_like(), num_layers=1)
    layout = random_layout(shape, (4, 4), seed=3)
    run = Run(shape, layout, mode, (40, 0))
    foreign = int(layout.phy2log_LP[0, 4])
    layout.tables_NLEJ[:, 0, foreign] = 4

    def serve_wrong(peers: Peers) -> Outcome:
        start = layout.start(peers.rank)
        runtime = MoeRuntime(SyntheticModel(shape), start, peers=peers, mode=mode)
        if peers.rank == 1:
            other = runtime.slots.expert_tensors(0, 1)
            for name, tensor in runtime.slots.expert_tensors(0, 0).items():
                tensor.copy_(other[name])
        return Outcome(runtime.forward(batch(run, peers.rank)), runtime.counters())

    outcomes = run_threads(serve_wrong, num_ranks=2)

    sent_E = np.sum([o.counters.sent_HLE for o in outcomes], axis=0)[Phase.DECODE, 0]
    reference = DenseReference(SyntheticModel(shape)).forward(batch(run, 0).x_TD, ByGate())
    off_T = (outcomes[0].y_TD - reference).abs().amax(dim=1)
    wrong_T = off_T > TOLERANCE * reference.abs().max()
    assert wrong_T.sum() == sent_E[foreign] > 0
    assert (off_T[wrong_T] > 1).all()


@dataclass(frozen=True, slots=True, eq=False)
class Migration:
    """Serve, install another placement in place, serve on."""

    runs: tuple[Run, ...]
    """One group of ranks, several placements one after the other."""


def move_to(runtime: MoeRuntime, layout: Layout, rank: int) -> None:
    for layer, held_S in enumerate(layout.held(rank)):
        changed = np.flatnonzero((held_S != runtime.held()[layer]) & (held_S >= 0)).tolist()
        for row, slot in enumerate(changed):
            fresh = runtime.model.expert(layer, int(held_S[slot]), torch.float32)
            for name, staged in runtime.slots.staging_tensors(row).items():
                staged.copy_(fresh.named()[name][0])
        runtime.install(layer, [Install(s, r) for r, s in enumerate(changed)], held_S)
        runtime.set_table(layer, layout.tables_NLEJ[rank, layer])


def difference(after: CounterSnapshot, before: IntArray, sent: IntArray) -> CounterSnapshot:
    return replace(after, received_HLS=after.received_HLS - before, sent_HLE=after.sent_HLE - sent)


def serve_while_moving(rank: int, migration: Migration) -> list[Outcome]:
    first = migration.runs[0]
    runtime = MoeRuntime(
        SyntheticModel(first.shape),
        first.layout.start(rank, staging_rows=max(first.layout.slots.slots_per_rank)),
        peers=GroupPeers(),
        mode=first.mode,
    )
    outcomes: list[Outcome] = []
    for run in migration.runs:
        move_to(runtime, run.layout, rank)
        before = runtime.counters()
        y_TD = runtime.forward(batch(run, rank))
        counted = difference(runtime.counters(), before.received_HLS, before.sent_HLE)
        outcomes.append(Outcome(y_TD, counted))
    return outcomes


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("mode", ExchangeMode)
@pytest.mark.parametrize(
    ("slots", "rows"),
    [
        ((6, 4), [(5, 3), (0, 7), (4, 0), (0, 0)]),
        ((2, 5, 1, 4), [(3, 0, 2, 9), (0, 0, 0, 1), (0, 0, 0, 0), (40, 1, 0, 3)]),
    ],
)
def test_placements_change_under_real_ranks_and_outputs_do_not(
    mode: ExchangeMode, slots: tuple[int, ...], rows: list[tuple[int, ...]]
) -> None:
    shape = kimi_like()
    runs = tuple(
        Run(shape, random_layout(shape, slots, seed=seed, num_empty=seed % 3), mode, rows_N)
        for seed, rows_N in enumerate(rows * 3)
    )

    by_rank = run_ranks(serve_while_moving, Migration(runs), num_ranks=len(slots))

    for step, run in enumerate(runs):
        outcomes = [steps[step] for steps in by_rank]
        assert_right(run, outcomes)
