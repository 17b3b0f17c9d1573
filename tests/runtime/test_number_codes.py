"""Every code of few bits is what its definition says, checked over all its values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moe_runtime.backends.codes import (
    block_scales,
    decode_e2m1,
    decode_e8m0,
    encode_e2m1,
    encode_e4m3,
    pack_int4,
    unpack_int4,
)
from moe_runtime.backends.cpu_rows import dequantise, quantise
from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.rows import Int8Rows, Mx8Rows, PlainRows, RowForm, pick_rows

SMALLEST = 2.0**-126
"""float32's smallest normal number; below it there are no steps."""
QUANTISED = [form for form in RowForm if form is not RowForm.PLAIN]


def test_every_int4_survives_packing_and_the_first_is_in_the_lowest_bits() -> None:
    numbers = torch.arange(-8, 8)
    words = pack_int4(numbers)
    assert words.shape == (2,)
    assert int(words[0]) & 0xF == 8  # -8 in two's complement
    assert torch.equal(unpack_int4(words), numbers.to(torch.int8))


def test_int4_numbers_that_do_not_fill_a_word_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match=r"\(7,\), expected a multiple of 8"):
        pack_int4(torch.zeros(7))


def test_e2m1_has_these_sixteen_values() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    values = decode_e2m1(codes[::2] | (codes[1::2] << 4), torch.float32)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert values.numpy().tolist() == positive + [-v for v in positive]
    assert torch.equal(encode_e2m1(values), codes[::2] | (codes[1::2] << 4))


@pytest.mark.parametrize(
    ("number", "nearest"),
    [
        # Halfway, the code that is even wins.
        *[(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)],
        *[(0.26, 0.5), (2.51, 3.0), (3.4, 3.0), (5.1, 6.0), (7.9, 6.0), (float("inf"), 6.0)],
    ],
)
def test_e2m1_rounds_to_the_nearest(number: float, nearest: float) -> None:
    both = encode_e2m1(torch.tensor([number, -number]))
    assert decode_e2m1(both, torch.float32).numpy().tolist() == [nearest, -nearest]


def test_e4m3_keeps_what_is_too_large_at_its_largest() -> None:
    assert encode_e4m3(torch.tensor([448.0, 1e9, -1e9])).float().numpy().tolist() == [
        448.0,
        448.0,
        -448.0,
    ]


def test_e8m0_is_a_power_of_two_and_one_code_is_no_number() -> None:
    scales = decode_e8m0(torch.tensor([0, 127, 130, 254, 255], dtype=torch.uint8), torch.float64)
    assert scales[:4].numpy().tolist() == [2.0**-127, 1.0, 8.0, 2.0**127]
    assert scales[4].isnan()


def test_a_block_scale_brings_the_largest_number_into_the_last_binade_of_its_elements() -> None:
    blocks = torch.zeros(1, 70)
    blocks[0, 3], blocks[0, 40], blocks[0, 69] = 5.0, -0.75, 2.0
    scales = decode_e8m0(block_scales(blocks, largest_exponent=2), torch.float64)
    assert scales.numpy().tolist() == [[1.0, 0.125, 0.5]]


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=64, max_size=64))
def test_a_quantised_row_is_within_half_a_step_of_what_it_was(numbers: list[float]) -> None:
    x = torch.tensor([numbers], dtype=torch.float32)
    largest = x.abs().amax()
    off = (dequantise(quantise(x, RowForm.INT8)) - x).abs()
    assert (off <= largest / 127 * 0.5 * (1 + 1e-5) + SMALLEST).all()
    off = (dequantise(quantise(x, RowForm.FP8)) - x).abs()
    assert (off <= x.abs() / 16 + largest / 448 * 2.0**-10 * (1 + 1e-5) + SMALLEST).all()


@pytest.mark.parametrize("form", RowForm)
def test_a_row_is_quantised_from_itself_alone(form: RowForm) -> None:
    x = torch.randn((9, 40), generator=torch.Generator().manual_seed(1))
    order = torch.tensor([4, 4, 0, 8])
    before, after = pick_rows(quantise(x, form), order), quantise(x[order], form)
    for one, other in zip(before.parts(), after.parts(), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("form", QUANTISED)
def test_zeros_stay_zeros_and_no_rows_stay_none(form: RowForm) -> None:
    assert torch.equal(
        dequantise(quantise(torch.zeros(2, 40), form)), torch.zeros(2, 40, dtype=torch.float64)
    )
    assert dequantise(quantise(torch.zeros(0, 40), form)).shape == (0, 40)


@pytest.mark.parametrize("form", QUANTISED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_not_hidden(form: RowForm, bad: float) -> None:
    x = torch.ones(2, 40)
    x[1, 7] = bad
    got = dequantise(quantise(x, form))
    assert got[0].isfinite().all()
    assert not got[1, :32].isfinite().any()


def test_parts_are_what_travels() -> None:
    rows = quantise(torch.ones(3, 40), RowForm.INT8)
    assert isinstance(rows, Int8Rows)
    assert [part.shape for part in rows.parts()] == [(3, 40), (3,)]
    assert isinstance(
        pick_rows(quantise(torch.ones(3, 40), RowForm.MXFP8), torch.tensor([1])), Mx8Rows
    )
    assert isinstance(quantise(torch.ones(3, 40), RowForm.PLAIN), PlainRows)
