"""The equivalence matrix: which cases there are, and how a rank runs one.

Factors: exchange mode, format, dtype, activation, kind of routing, biases, and the number of
ranks, which is the pool that a case runs in. What the capability table refuses is no case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.formats.capabilities import Asked, DeviceKind, refusals
from moe_runtime.placement.slots import EMPTY
from moe_runtime.runtime import (
    GELU,
    Activation,
    Batch,
    ByGate,
    ClippedSwiGLU,
    ExchangeMode,
    GELUTanh,
    MoeRuntime,
    Packing,
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
    WeightFormat,
)
from tests.runtime.oracle import Oracle, Want
from tests.runtime.routings import KINDS, stack_of, token_ids
from tests.runtime.stacks import random_layout, tokens

__all__ = ["SIZES", "Case", "Found", "covering", "every_case", "run_case"]

ACTIVATIONS: tuple[Activation, ...] = (
    SwiGLU(),
    SwiGLU(0.7),
    ClippedSwiGLU(alpha=1.702, beta=1.0, limit=7.0),
    SwiGLUOAI(),
    SwiGLUStep(),
    GELU(),
    GELUTanh(),
    SiTU(),
)
PACKINGS = (
    *(Packing(weights) for weights in WeightFormat),
    Packing(WeightFormat.W4A8, group_size=8),
    Packing(WeightFormat.W4A16, group_size=8),
)
SIZES = (1, 2, 4)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the matrix; `number` draws its placement and tokens."""

    mode: ExchangeMode
    packing: Packing
    dtype: torch.dtype
    activation: Activation
    kind: str
    biased: bool
    num_ranks: int
    number: int

    @property
    def factors(self) -> tuple[object, ...]:
        """What a pairwise cover is over."""
        return (
            *(self.mode, self.packing, self.dtype, self.activation),
            *(self.kind, self.biased, self.num_ranks),
        )

    @property
    def shape(self) -> StackShape:
        """One layer wide enough for blocks that are not full, and for words of int4."""
        stack = stack_of(KINDS[self.kind], activation=self.activation, num_layers=1)
        return replace(stack, width=40, intermediate=24, biased=self.biased)


@dataclass(frozen=True, slots=True)
class Found:
    """How far one rank's output was from what it must be, over how far it may be."""

    off_staged: float
    off_exact: float
    wrong_expert: float
    """How far it would be if every expert were its neighbour: what the bound must be able to
    see. Over the staged bound; 0 without tokens."""


def every_case() -> Iterator[Case]:
    """Return all cases that the capability table allows."""
    factors = product(ExchangeMode, PACKINGS, DTYPES, ACTIVATIONS, KINDS, (False, True), SIZES)
    for number, (mode, packing, dtype, activation, kind, biased, num_ranks) in enumerate(factors):
        asked = Asked(
            format=packing.format,
            dtype=dtype,
            mode=mode.value,
            device=DeviceKind.CPU,
            activation=type(activation).__name__,
            biased=biased,
        )
        if not refusals(asked):
            yield Case(mode, packing, dtype, activation, kind, biased, num_ranks, number)


def covering(cases: Sequence[Case]) -> list[Case]:
    """Return few cases among which every pair of two factors' values occurs that any case has.

    Greedy: as long as a pair is missing, the case that has most of what is missing.
    """
    order = np.random.default_rng(7).permutation(len(cases))
    cases = [cases[int(place)] for place in order]  # so that equals are not all of one kind
    pairs_CQ = _pairs(cases)
    missing = np.ones(int(pairs_CQ.max()) + 1, dtype=np.int64)
    chosen: list[Case] = []
    # Every pair is among the first few thousand many times; the rest are there for certainty.
    for candidates_CQ in (pairs_CQ[:4096], pairs_CQ):
        while (gains_C := missing[candidates_CQ].sum(axis=1)).any():
            best = int(gains_C.argmax())
            missing[candidates_CQ[best]] = 0
            chosen.append(cases[best])
    return chosen


def _pairs(cases: Sequence[Case]) -> npt.NDArray[np.int64]:
    """Return [C, Q]: a number for each pair of two factors' values, no number for two pairs."""
    factors = [_numbered(column) for column in zip(*(c.factors for c in cases), strict=True)]
    columns: list[npt.NDArray[np.int64]] = []
    start = 0
    for one_C, other_C in combinations(factors, 2):
        _, pair_C = np.unique(one_C * (int(other_C.max()) + 1) + other_C, return_inverse=True)
        columns.append(pair_C.astype(np.int64) + start)
        start += int(pair_C.max()) + 1
    return np.stack(columns, axis=1)


def _numbered(values: Sequence[object]) -> npt.NDArray[np.int64]:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def run_case(case: Case, peers: Peers) -> Found:
    """Serve one batch on this rank, with NaN wherever nobody may read, and measure it."""
    shape, size = case.shape, peers.size
    draw = np.random.default_rng(case.number)
    slots = tuple(int(n) for n in 8 // size + draw.integers(1, 3, size=size))
    layout = random_layout(
        shape, slots, seed=case.number, num_empty=int(draw.integers(0, size + 1)), num_choices=2
    )
    model = SyntheticModel(shape, seed=case.number)
    runtime = MoeRuntime(
        model,
        layout.start(peers.rank),
        peers=peers,
        mode=case.mode,
        dtype=case.dtype,
        packing=case.packing,
    )
    _spoil(runtime)
    num_tokens = int(draw.integers(0, 5, size=size)[peers.rank])
    x_TD = tokens(shape, num_tokens, seed=case.number + peers.rank)
    ids = token_ids(shape, num_tokens, seed=peers.rank)
    given = Batch.of(x_TD, ByGate(), Step(StepKind.REAL, Phase.DECODE))
    y_TD = runtime.forward(replace(given, token_ids=ids))
    assert y_TD.dtype == case.dtype
    oracle = Oracle(model, case.packing, case.dtype)
    staged, exact = oracle.staged(x_TD, ids), oracle.exact(x_TD, ids)
    wrong_TD = oracle.misplaced(x_TD, ids).y_TD
    return Found(
        _off(y_TD, staged),
        _off(y_TD, exact),
        _off(wrong_TD, staged) if num_tokens else 0.0,
    )


def _off(y_TD: Tensor, want: Want) -> float:
    if not y_TD.numel():
        return 0.0
    off = ((y_TD.to(torch.float64) - want.y_TD).abs() / want.within_TD).amax()
    return float(off.nan_to_num(torch.inf))


def _spoil(runtime: MoeRuntime) -> None:
    """Fill empty slots and staging rows with what no result survives."""
    empty = np.flatnonzero(runtime.held()[0] == EMPTY).tolist()
    for tensors in (
        *(runtime.slots.expert_tensors(0, slot) for slot in empty),
        *(runtime.slots.staging_tensors(row) for row in range(runtime.slots.staging_rows)),
    ):
        for tensor in tensors.values():
            tensor.view(torch.uint8).fill_(255)  # NaN as float of any width and as e8m0
