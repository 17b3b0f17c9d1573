"""Tokens that lie over teams: replicated or sharded, in every mode, computed and captured once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.exchange.limits import MC2_A3
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ByTable,
    Capability,
    Captured,
    CounterSnapshot,
    DenseReference,
    ExchangeMode,
    MoeRuntime,
    Nodes,
    OwnTokens,
    Peers,
    Phase,
    Replicated,
    Sharded,
    SocFamily,
    Step,
    StepKind,
    SyntheticModel,
    TokenSpread,
    Traffic,
)
from tests.runtime.stacks import Layout, kimi_like, random_layout, tokens
from tests.runtime.threads import run_threads

DECODE = Step(StepKind.REAL, Phase.DECODE)
SHAPE = kimi_like()
TEAM = 2
TOKENS_G = (5, 2)
"""Tokens of each data-parallel rank; 2 ranks each."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Meets `CaptureSink`."""

    steps: list[Captured] = field(default_factory=list[Captured])

    def take(self, captured: Captured) -> None:
        self.steps.append(captured)


def batch(rank: int, spread: TokenSpread) -> Batch:
    """Tokens of a rank, with a padding row of NaN after the first one."""
    group, place = divmod(rank, TEAM)
    x_TD = tokens(SHAPE, TOKENS_G[group], seed=group)
    match spread:
        case OwnTokens() | Replicated():
            pass
        case Sharded():
            x_TD = x_TD.tensor_split(TEAM)[place]
    nan = torch.full((1, SHAPE.width), float("nan"))
    real_T = torch.ones(len(x_TD) + 1, dtype=torch.bool)
    real_T[1 if len(x_TD) else 0] = False
    return Batch(torch.cat((x_TD[:1], nan, x_TD[1:])), real_T, ByGate(), DECODE)


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    y_TD: Tensor
    counters: CounterSnapshot
    captured: Captured


def serve(peers: Peers, layout: Layout, traffic: Traffic) -> Ended:
    kept = Kept()
    runtime = MoeRuntime(
        SyntheticModel(SHAPE),
        layout.start(peers.rank),
        peers=peers,
        mode=replace(traffic, capture=kept),
    )
    given = batch(peers.rank, traffic.spread)
    y_TD = runtime.forward(given)
    (captured,) = kept.steps
    return Ended(y_TD[given.real_T], runtime.counters(), captured)


def one_table(layout: Layout) -> Layout:
    """Where teams hold tokens alike, their ranks need one table."""
    tables = layout.tables_NLEJ.copy()
    tables[1::2] = tables[::2]
    return replace(layout, tables_NLEJ=tables)


def experts_of(rows: Sequence[Tensor]) -> list[Tensor]:
    """Return [T, L, K] of each data-parallel rank, as one rank alone captures them."""
    found: list[Tensor] = []
    for x_TD in rows:
        kept = Kept()
        runtime = MoeRuntime(
            SyntheticModel(SHAPE),
            random_layout(SHAPE, (8,), seed=1).start(0),
            peers=Alone(),
            mode=Traffic(mode=ExchangeMode.ALL_GATHER, capture=kept),
        )
        runtime.forward(Batch.of(x_TD, ByGate(), DECODE))
        found.append(kept.steps[0].experts_TLK)
    return found


@pytest.mark.parametrize("mode", ExchangeMode)
@pytest.mark.parametrize("spread", [Replicated(TEAM), Sharded(TEAM)], ids=["replicated", "sharded"])
def test_teams_get_their_outputs_and_every_token_counts_once(
    mode: ExchangeMode, spread: TokenSpread
) -> None:
    layout = one_table(random_layout(SHAPE, (3, 2, 4, 3), seed=8))
    ended = run_threads(
        lambda peers: serve(peers, layout, Traffic(mode=mode, spread=spread)), num_ranks=4
    )
    rows = [tokens(SHAPE, n, seed=g) for g, n in enumerate(TOKENS_G)]
    reference = DenseReference(SyntheticModel(SHAPE))
    alone = experts_of(rows)
    for rank, end in enumerate(ended):
        group, place = divmod(rank, TEAM)
        x_TD = rows[group]
        if isinstance(spread, Sharded):
            x_TD = x_TD.tensor_split(TEAM)[place]
        want_TD = reference.forward(x_TD, ByGate())
        torch.testing.assert_close(end.y_TD.double(), want_TD, rtol=1e-4, atol=1e-3)
        assert torch.equal(end.captured.experts_TLK, alone[group])
    # What was captured at the first rank of each team is what all ranks together have sent.
    captured = torch.cat([ended[0].captured.experts_TLK, ended[2].captured.experts_TLK]).long()
    sent_LE = np.sum([e.counters.sent_HLE[Phase.DECODE] for e in ended], axis=0)
    received = np.sum([e.counters.received_HLS[Phase.DECODE].sum() for e in ended])
    for layer in range(SHAPE.num_layers):
        counts = torch.bincount(captured[:, layer].reshape(-1), minlength=SHAPE.num_experts)
        assert sent_LE[layer].tolist() == counts.numpy().tolist()
    assert received == sent_LE.sum()
    assert sum(int(e.counters.tokens_H[Phase.DECODE]) for e in ended) == sum(TOKENS_G)


def test_replicated_outputs_are_the_same_bits_on_every_rank_of_a_team() -> None:
    layout = one_table(random_layout(SHAPE, (3, 2, 4, 3), seed=8))
    traffic = Traffic(mode=ExchangeMode.ALL_GATHER, spread=Replicated(TEAM))
    ended = run_threads(lambda peers: serve(peers, layout, traffic), num_ranks=4)
    assert torch.equal(ended[0].y_TD, ended[1].y_TD)
    assert torch.equal(ended[2].y_TD, ended[3].y_TD)


def refused(layout: Layout, traffic: Traffic, *, odd_rank: int = -1) -> list[str]:
    def attempt(peers: Peers) -> str:
        start = layout.start(peers.rank)
        runtime = MoeRuntime(SyntheticModel(SHAPE), start, peers=peers, mode=traffic)
        given = batch(peers.rank, traffic.spread)
        if peers.rank == odd_rank:
            given = Batch.of(tokens(SHAPE, 9, seed=0), ByGate(), DECODE)
        with pytest.raises(RanksDisagree) as told:
            runtime.forward(given)
        return str(told.value)

    return run_threads(attempt, num_ranks=4)


def test_replica_choices_that_differ_in_a_team_are_refused_on_every_rank() -> None:
    layout = random_layout(SHAPE, (3, 4, 4, 3), seed=8, num_choices=2)
    assert (layout.tables_NLEJ[0] != layout.tables_NLEJ[1]).any()
    told = refused(layout, Traffic(mode=ExchangeMode.ALL_GATHER, spread=Replicated(TEAM)))
    assert all("the dispatch tables of the 2 ranks of a team" in t for t in told)


@pytest.mark.parametrize("mode", ExchangeMode)
def test_a_team_that_announces_different_tokens_is_refused_on_every_rank(
    mode: ExchangeMode,
) -> None:
    layout = one_table(random_layout(SHAPE, (3, 2, 4, 3), seed=8))
    told = refused(layout, Traffic(mode=mode, spread=Replicated(TEAM)), odd_rank=1)
    assert all("the number of tokens that 2 ranks of a team hold alike" in t for t in told)
    assert all("tokens [5, 9, 2, 2] by rank" in t for t in told)


BASE = Traffic(mode=ExchangeMode.FUSED_MC2, spread=Replicated(2))
TABLE = ByTable(soc=SocFamily.CPU, format="unquantised", capabilities=frozenset(Capability))
BY_TABLE = Traffic(mode=TABLE)


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (BASE, replace(BASE, buffer_rows=17)),
        (BASE, replace(BASE, spread=Replicated(4))),
        (BASE, replace(BASE, spread=Sharded(2))),
        (BASE, replace(BASE, limits=MC2_A3)),
        (BASE, replace(BASE, capture=Kept())),
        (BASE, replace(BASE, mode=ExchangeMode.MC2)),
        (BY_TABLE, replace(BY_TABLE, mode=replace(TABLE, capabilities=frozenset()))),
        (BY_TABLE, replace(BY_TABLE, mode=replace(TABLE, override=ExchangeMode.ALL_TO_ALL))),
        (BY_TABLE, replace(BY_TABLE, mode=replace(TABLE, compared=True))),
    ],
)
def test_settings_that_differ_between_ranks_are_refused_before_anything_is_sent(
    base: Traffic, other: Traffic
) -> None:
    shape = replace(SHAPE, latent=None, width=1024)  # which limits of devices take, too
    layout = one_table(random_layout(shape, (3, 2, 4, 3), seed=8))

    def attempt(peers: Peers) -> str:
        with pytest.raises(RanksDisagree) as told:
            MoeRuntime(
                SyntheticModel(shape),
                layout.start(peers.rank),
                peers=peers,
                mode=other if peers.rank == 3 else base,
            )
        return str(told.value)

    told = run_threads(attempt, num_ranks=4)
    assert len(set(told)) == 1
    assert "how tokens are exchanged must be the same on every rank" in told[0]


def small(**change: object) -> Traffic:
    return replace(Traffic(mode=ExchangeMode.FUSED_MC2), **change)


def compared(capabilities: frozenset[Capability]) -> ByTable:
    return ByTable(
        soc=SocFamily.CPU, format="unquantised", capabilities=capabilities, compared=True
    )


@pytest.mark.parametrize(
    ("traffic", "overflows"),
    [
        (small(buffer_rows=1), True),
        (small(buffer_rows=8), False),
        (small(mode=ExchangeMode.MC2, nodes=Nodes(2)), False),
        (small(mode=compared(frozenset(Capability))), False),
        (small(mode=compared(frozenset({Capability.MC2}))), False),
        (small(mode=compared(frozenset[Capability]())), False),
    ],
)
def test_every_way_gives_the_reference_output(traffic: Traffic, overflows: bool) -> None:  # noqa: FBT001
    """A step that does not fit the fused buffer is computed another way: load, not loss."""
    layout = random_layout(SHAPE, (1, 2, 4, 3), seed=8)
    rows_N = (0, 30, 0, 1)

    def through(peers: Peers) -> tuple[Tensor, CounterSnapshot]:
        runtime = MoeRuntime(
            SyntheticModel(SHAPE), layout.start(peers.rank), peers=peers, mode=traffic
        )
        x_TD = tokens(SHAPE, rows_N[peers.rank], seed=peers.rank)
        return runtime.forward(Batch.of(x_TD, ByGate(), DECODE)), runtime.counters()

    ended = run_threads(through, num_ranks=4)
    reference = DenseReference(SyntheticModel(SHAPE))
    for rank, (y_TD, _) in enumerate(ended):
        want_TD = reference.forward(tokens(SHAPE, rows_N[rank], seed=rank), ByGate())
        torch.testing.assert_close(y_TD.double(), want_TD, rtol=1e-4, atol=1e-3)
    received = sum(int(c.received_HLS.sum()) for _, c in ended)
    assert received == sum(rows_N) * SHAPE.selector.top_k * SHAPE.num_layers
    over = [c.overflow_rows for _, c in ended]
    assert (sum(over) > 0) is overflows
    if overflows:  # of what a rank received, the part beyond its buffer
        most = traffic.buffer_rows * 4 * min(SHAPE.selector.top_k, 4)
        demand = [c.received_HLS.sum(axis=(0, 2)) for _, c in ended]
        assert over == [int(np.maximum(0, at - most).sum()) for at in demand]
