"""Every kind of routing with every activation, over ranks, gives the reference output."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import MissingTokenIds, ShapeMismatch, TokenIdOutOfRange
from moe_runtime.exchange.peers import Arrived, Pending
from moe_runtime.runtime import (
    GELU,
    Activation,
    Alone,
    Batch,
    ByGate,
    ByLogits,
    ClippedSwiGLU,
    CounterSnapshot,
    DenseReference,
    ExchangeMode,
    GELUTanh,
    LatentShape,
    MoeRuntime,
    Peers,
    Phase,
    SiTU,
    StackShape,
    Step,
    StepKind,
    SwiGLU,
    SwiGLUOAI,
    SwiGLUStep,
    SyntheticModel,
    TokenIds,
)
from tests.runtime.routings import KINDS, Kind, stack_of, token_ids
from tests.runtime.stacks import random_layout, tokens
from tests.runtime.threads import run_threads

DECODE = Step(StepKind.REAL, Phase.DECODE)
ACTIVATIONS: tuple[Activation, ...] = (
    SwiGLU(),
    SwiGLU(limit=2.0),
    ClippedSwiGLU(alpha=1.3, beta=0.5, limit=3.0),
    SwiGLUOAI(),
    SwiGLUStep(limit=2.0),
    GELU(),
    GELUTanh(),
    SiTU(),
)
CELLS = [
    pytest.param(kind, activation, tuple(ExchangeMode)[(i + j) % 2], id=f"{name}-{activation}")
    for (i, (name, kind)), (j, activation) in product(
        enumerate(KINDS.items()), enumerate(ACTIVATIONS)
    )
]
ROWS = (7, 4)


def padded(shape: StackShape, rank: int) -> Batch:
    """Tokens of one rank, with a padding row after each in which everything is nonsense."""
    num_rows = 2 * ROWS[rank]
    x_TD = tokens(shape, num_rows, seed=rank)
    real_T = torch.arange(num_rows) % 2 == 0
    x_TD[~real_T] = float("nan")
    ids = token_ids(shape, num_rows, seed=rank)
    if isinstance(ids, TokenIds):
        ids.ids_T[~real_T] = -7
    return Batch(x_TD, real_T, ByGate(), DECODE, ids)


def relative_error(shape: StackShape, outputs: list[Tensor]) -> float:
    reference = DenseReference(SyntheticModel(shape))
    errors: list[float] = []
    for rank, y_TD in enumerate(outputs):
        given = padded(shape, rank)
        ids = given.token_ids
        if isinstance(ids, TokenIds):
            ids = TokenIds(ids.ids_T[given.real_T])
        want_TD = reference.forward(given.x_TD[given.real_T], given.router, ids)
        off_T = (y_TD[given.real_T] - want_TD).abs().amax(dim=1) / want_TD.abs().amax(dim=1)
        assert off_T.isfinite().all()
        errors.append(float(off_T.max()))
    return max(errors)


@pytest.mark.parametrize(("kind", "activation", "mode"), CELLS)
def test_every_kind_with_every_activation_gives_the_reference_output(
    kind: Kind, activation: Activation, mode: ExchangeMode
) -> None:
    """Each kind meets each activation, and each of both meets each mode."""
    shape = stack_of(kind, activation=activation)
    layout = random_layout(shape, (6, 5), seed=3, num_empty=1)

    def serve(peers: Peers) -> tuple[Tensor, CounterSnapshot]:
        start = layout.start(peers.rank)
        runtime = MoeRuntime(SyntheticModel(shape), start, peers=peers, mode=mode)
        return runtime.forward(padded(shape, peers.rank)), runtime.counters()

    ended = run_threads(serve, num_ranks=2)

    assert relative_error(shape, [y_TD for y_TD, _ in ended]) < 1e-5
    sent_LE = np.sum([counted.sent_HLE[Phase.DECODE] for _, counted in ended], axis=0)
    zero_L = np.sum([counted.zero_HL[Phase.DECODE] for _, counted in ended], axis=0)
    received = [counted.received_HLS[Phase.DECODE].sum(axis=1) for _, counted in ended]
    pairs = sum(ROWS) * shape.selector.top_k
    assert (sent_LE.sum(axis=1) == np.sum(received, axis=0)).all()
    assert (sent_LE.sum(axis=1) + zero_L == pairs).all()


@pytest.mark.parametrize("mode", ExchangeMode)
@pytest.mark.parametrize("name", ["zero experts", "custom on input", "hashed"])
def test_kinds_that_change_what_is_sent_work_in_a_latent_too(name: str, mode: ExchangeMode) -> None:
    shape = stack_of(KINDS[name], latent=LatentShape(12))
    start = random_layout(shape, (9,), seed=2).start(0)
    runtime = MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=mode)
    assert relative_error(shape, [runtime.forward(padded(shape, 0))]) < 1e-5


# --- zero experts --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ExchangeMode)
def test_tokens_that_choose_only_zero_experts_are_sent_nowhere(mode: ExchangeMode) -> None:
    """On both ranks, so that no row at all is computed."""
    shape = stack_of(KINDS["zero experts"], num_layers=1)
    layout = random_layout(shape, (4, 5), seed=2)
    logits = torch.zeros((1, 3, shape.num_candidates))
    logits[:, :, -4:] = 9.0

    def serve(peers: Peers) -> tuple[Tensor, CounterSnapshot]:
        start = layout.start(peers.rank)
        runtime = MoeRuntime(SyntheticModel(shape), start, peers=peers, mode=mode)
        x_TD = tokens(shape, 3, seed=peers.rank)
        return runtime.forward(Batch.of(x_TD, ByLogits(logits), DECODE)), runtime.counters()

    for rank, (y_TD, counted) in enumerate(run_threads(serve, num_ranks=2)):
        x_TD = tokens(shape, 3, seed=rank)
        want_TD = DenseReference(SyntheticModel(shape)).forward(x_TD, ByLogits(logits))
        torch.testing.assert_close(y_TD.double(), want_TD, rtol=1e-5, atol=1e-4)
        assert counted.zero_HL[Phase.DECODE].tolist() == [12]
        assert not counted.sent_HLE.any()
        assert not counted.received_HLS.any()


def test_zero_experts_of_steps_that_are_not_real_are_not_counted() -> None:
    shape = stack_of(KINDS["zero experts"], num_layers=1)
    start = random_layout(shape, (9,), seed=2).start(0)
    mode = ExchangeMode.ALL_TO_ALL
    runtime = MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=mode)
    for kind in (StepKind.WARMUP, StepKind.PROFILE):
        runtime.forward(Batch.of(tokens(shape, 9, seed=1), ByGate(), Step(kind, Phase.DECODE)))
    assert not runtime.counters().zero_HL.any()


# --- token ids -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Silent(Alone):
    """A group in which nothing may be said once it is hushed."""

    hushed: bool = False

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        assert not self.hushed, f"{rows.shape} {rows_N} were sent although the batch is unfit"
        return Alone.all_gather(self, rows, rows_N)


UNFIT = {
    "foreign": (TokenIds(torch.tensor([1, 17, 99])), TokenIdOutOfRange, r"\[17, 99\]"),
    "fewer": (TokenIds(torch.tensor([1, 2])), ShapeMismatch, "token_ids has shape"),
}


def hashed(name: str) -> tuple[MoeRuntime, Batch]:
    shape = stack_of(KINDS[name])
    start = random_layout(shape, (9,), seed=1).start(0)
    mode = ExchangeMode.ALL_GATHER
    runtime = MoeRuntime(SyntheticModel(shape), start, peers=(peers := Silent()), mode=mode)
    peers.hushed = True
    return runtime, Batch.of(tokens(shape, 3, seed=1), ByGate(), DECODE)


@pytest.mark.parametrize("name", ["hashed", "hashed on input"])
@pytest.mark.parametrize(("ids", "error", "told"), UNFIT.values(), ids=UNFIT.keys())
def test_unfit_token_ids_are_refused_before_the_group_hears_of_the_step(
    name: str, ids: TokenIds, error: type[Exception], told: str
) -> None:
    runtime, batch = hashed(name)
    with pytest.raises(error, match=told):
        runtime.forward(replace(batch, token_ids=ids))


@pytest.mark.parametrize("name", ["hashed", "hashed on input"])
def test_missing_token_ids_are_refused_before_the_group_hears_of_the_step(name: str) -> None:
    runtime, batch = hashed(name)
    with pytest.raises(MissingTokenIds, match="brings 3 rows without any"):
        runtime.forward(batch)


def test_a_dummy_step_needs_no_token_ids() -> None:
    shape = stack_of(KINDS["hashed"])
    start = random_layout(shape, (9,), seed=1).start(0)
    mode = ExchangeMode.ALL_GATHER
    runtime = MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=mode)
    assert runtime.forward(Batch.dummy(shape.width)).shape == (0, shape.width)


# --- forced balance ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """Peers that note what is exchanged."""

    inner: Peers
    heard: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def size(self) -> int:
        return self.inner.size

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        return self.inner.all_gather(rows, rows_N)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        self.heard.append(rows)
        return self.inner.all_to_all(rows, sent, received)

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        del what
        return Arrived(self.all_to_all(rows, sent, received))


@pytest.mark.parametrize("name", ["sigmoid corrected", "hashed", "zero experts"])
def test_a_profile_step_is_even_over_all_ranks_and_is_no_load(name: str) -> None:
    """Rank 1 goes on where rank 0 ended: 11 tokens are spread as if one rank had them all."""
    shape = stack_of(KINDS[name], num_layers=1)
    layout = random_layout(shape, (4, 4), seed=5)

    def serve(peers: Peers) -> tuple[Tensor, CounterSnapshot]:
        listening = Listening(peers)
        start = layout.start(peers.rank)
        mode = ExchangeMode.ALL_TO_ALL
        runtime = MoeRuntime(SyntheticModel(shape), start, peers=listening, mode=mode)
        step = Step(StepKind.PROFILE, Phase.PREFILL)
        runtime.forward(replace(padded(shape, peers.rank), step=step))
        counts_P = listening.heard[0][:, 0]  # beside each, what the receiver checks it against
        return counts_P, runtime.counters()

    ended = run_threads(serve, num_ranks=2)

    counts_P = sum((counts for counts, _ in ended), torch.zeros(8, dtype=torch.int64))
    assert int(counts_P.max() - counts_P.min()) <= 1
    assert int(counts_P.sum()) == sum(ROWS) * shape.selector.top_k
    for _, counted in ended:
        assert not counted.sent_HLE.any()
        assert not counted.received_HLS.any()
