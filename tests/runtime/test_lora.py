"""LoRA on routed experts: what each adapter adds, wherever its experts are and tokens come from.

Axes    T tokens   E experts   R rank of an adapter   Z width of the routed part   F = 2 I
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.adapters import BadAdapter
from moe_runtime.contracts.errors import MoeError, ShapeMismatch, UnreadableRows, Unsupported
from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.contracts.rows import AdaptedRows, PlainRows, RowForm
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.experts.lora import adapters_of_rows
from moe_runtime.formats.capabilities import Asked, DeviceKind, refusals
from moe_runtime.formats.packing import dense_of, pack
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.runtime import (
    NO_ADAPTER,
    AdapterIds,
    Alone,
    Batch,
    ByGate,
    DenseReference,
    ExchangeMode,
    ExpertAdapters,
    Install,
    MoeRuntime,
    Nodes,
    Packing,
    Peers,
    Phase,
    Replicated,
    Sharded,
    StackShape,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
    UnevenRows,
    WeightFormat,
)
from moe_runtime.runtime.model import ExpertBias
from tests.runtime.stacks import Layout, kimi_like, random_layout, tokens
from tests.runtime.threads import ThreadPeers, run_threads

SHAPE = kimi_like()
DECODE = Step(StepKind.REAL, Phase.DECODE)
NUM, RANK = 3, 2
WIDE = torch.float64
GATHER = Traffic(mode=ExchangeMode.ALL_GATHER, num_adapters=NUM)
WAYS = {
    "all_gather": GATHER,
    "all_to_all": replace(GATHER, mode=ExchangeMode.ALL_TO_ALL),
    "mc2": replace(GATHER, mode=ExchangeMode.MC2),
    "mc2 of uneven rows": replace(
        GATHER, mode=ExchangeMode.MC2, block_rows=UnevenRows(global_rows=40)
    ),
    "hierarchical mc2": replace(GATHER, mode=ExchangeMode.MC2, nodes=Nodes(1)),
}


def drawn(*, seed: int = 5, shape: StackShape = SHAPE) -> list[ExpertAdapters]:
    random = torch.Generator().manual_seed(seed)

    def stack(*size: int) -> Tensor:
        return torch.randn((NUM, shape.num_experts, *size), generator=random, dtype=WIDE) / 2

    z, i = shape.routed_width, shape.intermediate
    return [
        ExpertAdapters(stack(RANK, z), stack(2 * i, RANK), stack(RANK, i), stack(z, RANK))
        for _ in range(shape.num_layers)
    ]


@dataclass(frozen=True)
class Merged:
    """Meets `Model`: the weights of a format, each expert's with one adapter added to them."""

    plain: SyntheticModel
    adapters: list[ExpertAdapters]
    number: int
    packing: Packing

    @property
    def shape(self) -> StackShape:
        return self.plain.shape

    def layer(self, layer: int, dtype: torch.dtype) -> LayerWeights:
        return self.plain.layer(layer, dtype)

    def bias(self, layer: int, expert: int, dtype: torch.dtype) -> ExpertBias:
        return self.plain.bias(layer, expert, dtype)

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        dense = dense_of(pack(self.plain.expert(layer, expert, WIDE), self.packing, WIDE))
        if self.number == NO_ADAPTER:
            return DenseWeights(dense.w13_SFZ.to(dtype), dense.w2_SZI.to(dtype))
        of, n = self.adapters[layer], self.number
        w13 = dense.w13_SFZ + of.b13_NEFR[n, expert] @ of.a13_NERZ[n, expert]
        w2 = dense.w2_SZI + of.b2_NEZR[n, expert] @ of.a2_NERI[n, expert]
        return DenseWeights(w13.to(dtype), w2.to(dtype))


def right_of(x_TD: Tensor, ids_T: Tensor, packing: Packing, shape: StackShape = SHAPE) -> Tensor:
    out = torch.zeros(x_TD.shape, dtype=WIDE)
    for number in (NO_ADAPTER, *range(NUM)):
        model = Merged(SyntheticModel(shape), drawn(shape=shape), number, packing)
        used = ids_T == number
        out[used] = DenseReference(model).forward(x_TD[used], ByGate())
    return out


def serving(
    layout: Layout,
    peers: Peers,
    traffic: Traffic,
    packing: Packing | None = None,
    shape: StackShape = SHAPE,
) -> MoeRuntime:
    runtime = MoeRuntime(
        SyntheticModel(shape),
        layout.start(peers.rank),
        peers=peers,
        mode=traffic,
        dtype=WIDE,
        packing=packing or Packing(),
    )
    runtime.load_adapters(drawn(shape=shape))
    return runtime


def given(num_tokens: int, *, seed: int, shape: StackShape = SHAPE) -> tuple[Batch, Tensor]:
    x_TD = tokens(shape, num_tokens, seed=seed).to(WIDE)
    ids_T = torch.arange(num_tokens) % (NUM + 1) - 1
    return replace(Batch.of(x_TD, ByGate(), DECODE), adapters=AdapterIds(ids_T)), ids_T


def close(got: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_each_token_gets_its_adapter_whichever_rank_computes_it(way: str) -> None:
    """Two ranks, one of them at times without tokens, and one whose tokens use no adapter."""
    layout = random_layout(SHAPE, (6, 6), seed=3, num_empty=1, num_choices=2)

    def work(peers: ThreadPeers) -> list[Tensor]:
        runtime = serving(layout, peers, WAYS[way])
        both, _ = given(5 + 2 * peers.rank, seed=peers.rank)
        alone = given(6, seed=9)[0] if peers.rank else Batch.dummy(SHAPE.width, dtype=WIDE)
        plain = Batch.of(both.x_TD, ByGate(), DECODE)
        return [runtime.forward(batch) for batch in (both, alone, plain)]

    for rank, (both, alone, plain) in enumerate(run_threads(work, num_ranks=2)):
        batch, ids_T = given(5 + 2 * rank, seed=rank)
        close(both, right_of(batch.x_TD, ids_T, Packing()))
        close(plain, right_of(batch.x_TD, torch.full_like(ids_T, NO_ADAPTER), Packing()))
        if rank:
            batch, ids_T = given(6, seed=9)
            close(alone, right_of(batch.x_TD, ids_T, Packing()))


@pytest.mark.parametrize("spread", [Replicated(2), Sharded(2)])
@pytest.mark.parametrize("mode", [ExchangeMode.ALL_GATHER, ExchangeMode.ALL_TO_ALL])
def test_adapters_follow_the_pieces_of_a_team(
    spread: Replicated | Sharded, mode: ExchangeMode
) -> None:
    drawn_layout = random_layout(SHAPE, (6, 6), seed=3)
    alike = np.repeat(drawn_layout.tables_NLEJ[:1], 2, axis=0)
    layout = replace(drawn_layout, tables_NLEJ=alike)
    batch, ids_T = given(7, seed=2)

    def work(peers: ThreadPeers) -> Tensor:
        return serving(layout, peers, replace(GATHER, mode=mode, spread=spread)).forward(batch)

    for out in run_threads(work, num_ranks=2):
        close(out, right_of(batch.x_TD, ids_T, Packing()))


@pytest.mark.parametrize("weights", [WeightFormat.UNQUANTISED, WeightFormat.W4A16])
def test_padding_biases_and_formats_that_read_plain_rows(weights: WeightFormat) -> None:
    shape = replace(kimi_like(width=32), biased=True, latent=None, intermediate=16)
    packing = Packing(weights)
    layout = random_layout(shape, (shape.num_experts,), seed=1)
    batch, ids_T = given(6, seed=4, shape=shape)
    real_T = torch.tensor([True, False, True, True, False, True])
    wild_T = torch.where(real_T, ids_T, 77)
    padded = replace(batch, real_T=real_T, adapters=AdapterIds(wild_T))
    out = serving(layout, Alone(), GATHER, packing, shape).forward(padded)
    close(out[real_T], right_of(batch.x_TD[real_T], ids_T[real_T], packing, shape))


def test_an_expert_that_moves_is_found_with_its_adapters() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts + 1,), seed=1, num_empty=1)
    runtime = serving(layout, Alone(), GATHER)
    batch, _ = given(8, seed=2)
    before = runtime.forward(batch)
    for layer in range(SHAPE.num_layers):
        held, table = runtime.held()[layer], runtime.tables()[layer]
        empty, source = int(np.flatnonzero(held < 0)[0]), int(np.flatnonzero(held >= 0)[0])
        for name, row in runtime.slots.staging_tensors(0).items():
            row.copy_(runtime.slots.expert_tensors(layer, source)[name])
        expert, held[empty], held[source] = int(held[source]), held[source], -1
        table[expert] = empty
        runtime.install(layer, [Install(empty, 0)], held)
        runtime.set_table(layer, table)
    close(runtime.forward(batch), before)


def test_a_step_that_fails_leaves_no_adapter_behind() -> None:
    runtime = serving(random_layout(SHAPE, (SHAPE.num_experts,), seed=1), Alone(), GATHER)
    batch, ids_T = given(4, seed=2)
    with pytest.raises(BadAdapter, match=f"such as {NUM}, and {NUM} are loaded"):
        runtime.forward(replace(batch, adapters=AdapterIds(torch.full_like(ids_T, NUM))))
    plain = Batch.of(batch.x_TD, ByGate(), DECODE)
    none = torch.full_like(ids_T, NO_ADAPTER)
    close(runtime.forward(plain), right_of(batch.x_TD, none, Packing()))


def test_adapters_that_are_not_there_are_refused() -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    batch, ids_T = given(4, seed=2)
    never_loaded = MoeRuntime(
        SyntheticModel(SHAPE), layout.start(0), peers=Alone(), mode=GATHER, dtype=WIDE
    )
    with pytest.raises(BadAdapter, match="0 are loaded"):
        never_loaded.forward(batch)
    runtime = serving(layout, Alone(), GATHER)
    with pytest.raises(ShapeMismatch, match=r"adapters has shape \(3,\)"):
        runtime.forward(replace(batch, adapters=AdapterIds(ids_T[:3])))
    with pytest.raises(BadAdapter, match="such as -2"):
        runtime.forward(replace(batch, adapters=AdapterIds(ids_T - 1)))
    with pytest.raises(ShapeMismatch, match="adapters has shape"):
        runtime.load_adapters(drawn()[:1])
    with pytest.raises(ShapeMismatch, match=r"expected \(3, 8, 12, 32\)"):
        runtime.load_adapters(drawn(shape=kimi_like(num_experts=9)))


def test_ranks_that_have_loaded_different_adapters_take_no_step() -> None:
    layout = random_layout(SHAPE, (6, 6), seed=3)

    def work(peers: ThreadPeers) -> str:
        runtime = serving(layout, peers, GATHER)
        runtime.load_adapters(drawn(seed=peers.rank))
        try:
            runtime.forward(given(3, seed=1)[0])
        except RanksDisagree as refused:
            return str(refused)
        return "they went on"

    assert all("how tokens are exchanged" in text for text in run_threads(work, num_ranks=2))


@pytest.mark.parametrize(
    ("traffic", "weights", "says"),
    [
        (replace(GATHER, mode=ExchangeMode.FUSED_MC2), WeightFormat.UNQUANTISED, "no place"),
        (GATHER, WeightFormat.W8A8, "LoRA reads rows as they are"),
        (GATHER, WeightFormat.W4A8, "LoRA reads rows as they are"),
    ],
)
def test_what_cannot_be_adapted_is_refused_at_load(
    traffic: Traffic, weights: WeightFormat, says: str
) -> None:
    layout = random_layout(SHAPE, (SHAPE.num_experts,), seed=1)
    with pytest.raises(Unsupported, match=says):
        serving(layout, Alone(), traffic, Packing(weights))


def test_operators_that_carry_no_number_with_a_row_are_refused_by_name() -> None:
    asked = Asked(
        format=WeightFormat.UNQUANTISED,
        dtype=torch.bfloat16,
        mode="mc2",
        device=DeviceKind.A3,
        activation="SwiGLU",
        lora=True,
    )
    assert "MC2's operators carry no number of an adapter with a row" in refusals(asked)


def test_rows_that_lost_their_numbers_are_not_computed_as_if_they_had_none() -> None:
    rows = torch.zeros((2, 4))
    with pytest.raises(UnreadableRows, match="without the number of an adapter"):
        adapters_of_rows(PlainRows(rows), RowForm.PLAIN)
    with pytest.raises(MoeError, match="with the number of an adapter"):
        adapters_of_rows(AdaptedRows(rows, torch.zeros(2, dtype=torch.int64)), RowForm.INT8)
