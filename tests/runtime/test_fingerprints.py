"""Tokens of a team that differ at all have another fingerprint.

Axes    T rows   D model width
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from moe_runtime.runtime import Batch, ByGate, Phase, Step, StepKind
from moe_runtime.runtime.marks import fingerprint

DECODE = Step(StepKind.REAL, Phase.DECODE)
WORDS = {torch.float64: 64, torch.float32: 32, torch.bfloat16: 16, torch.float16: 16}
INTEGERS = {64: torch.int64, 32: torch.int32, 16: torch.int16}
Change = Callable[[Tensor], Tensor]


def mark(x_TD: Tensor) -> int:
    return fingerprint(Batch.of(x_TD, ByGate(), DECODE))


def drawn(dtype: torch.dtype) -> Tensor:
    return torch.randn((6, 16), generator=torch.Generator().manual_seed(3)).to(dtype)


def negated(columns: slice, rows: slice = slice(3, 4)) -> Change:
    def change(x_TD: Tensor) -> Tensor:
        x_TD[rows, columns] *= -1
        return x_TD

    return change


def taken(order: list[int], *, dim: int) -> Change:
    return lambda x_TD: x_TD.index_select(dim, torch.tensor(order))


CHANGES: dict[str, Change] = {
    "two signs of a row": negated(slice(0, 2)),
    "two signs apart": negated(slice(1, 12, 10)),
    "a negated row": negated(slice(None)),
    "two negated rows": negated(slice(None), slice(1, 4, 2)),
    "a negated column": negated(slice(4, 5), slice(None)),
    "all negated": negated(slice(None), slice(None)),
    "swapped rows": taken([0, 4, 2, 3, 1, 5], dim=0),
    "swapped columns": taken([0, 1, 9, *range(3, 9), 2, *range(10, 16)], dim=1),
    "rows turned round": taken([5, 4, 3, 2, 1, 0], dim=0),
    "columns turned round": taken([*range(15, -1, -1)], dim=1),
}


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("what", CHANGES)
def test_tokens_that_are_changed_are_marked_otherwise(what: str, dtype: torch.dtype) -> None:
    x_TD = drawn(dtype)
    assert mark(CHANGES[what](x_TD.clone())) != mark(x_TD)


@pytest.mark.parametrize("dtype", WORDS)
def test_no_two_of_all_batches_that_differ_in_a_bit_or_in_a_pair_of_equal_bits_are_alike(
    dtype: torch.dtype,
) -> None:
    """Also where the one bit is the sign, and where the same bit of two neighbours is changed."""
    x_TD, bits = drawn(dtype), WORDS[dtype]
    seen = {mark(x_TD)}
    changes = 0
    for width in (1, 2):
        for place in range(x_TD.numel() - width + 1):
            for bit in range(bits):
                other = x_TD.clone()
                flat = other.view(INTEGERS[bits]).reshape(-1)
                least = -(2 ** (bits - 1))
                flat[place : place + width] ^= 1 << bit if bit < bits - 1 else least
                seen.add(mark(flat.view(dtype).view(x_TD.shape)))
                changes += 1
    assert len(seen) == 1 + changes


def test_equal_tokens_are_marked_alike_wherever_they_lie_in_memory() -> None:
    x_TD = drawn(torch.float32)
    assert mark(x_TD.t().contiguous().t()) == mark(x_TD)


def test_padding_rows_may_be_anything() -> None:
    x_TD, real_T = drawn(torch.float32), torch.tensor([True, True, False, True, True, False])
    other = torch.where(real_T[:, None], x_TD, torch.nan)
    one, two = (Batch(x, real_T, ByGate(), DECODE) for x in (x_TD, other))
    assert fingerprint(one) == fingerprint(two)
