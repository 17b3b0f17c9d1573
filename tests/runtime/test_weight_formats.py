"""Each weight format: its tensors, what they stand for, and what it computes.

Axes    S slots   F = 2 I   Z width   M rows
"""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.backends.cpu_rows import dequantise, quantise
from moe_runtime.contracts.errors import ShapeMismatch, UnreadableRows
from moe_runtime.contracts.groups import GroupCounts
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.stages import Dispatched
from moe_runtime.contracts.torch_calls import to_ints
from moe_runtime.contracts.weights import BiasedWeights, DenseWeights, PlainExpertWeights
from moe_runtime.experts.mlp import compute_grouped
from moe_runtime.formats.packing import Packing, WeightFormat, dense_of, pack
from moe_runtime.runtime import SwiGLU

S, F, Z = 3, 32, 40
COUNTS = GroupCounts(torch.tensor([4, 0, 3]))
CLAIMS = torch.arange(S)[None]
PACKINGS = [Packing(form) for form in WeightFormat] + [
    Packing(WeightFormat.W4A8, group_size=8),
    Packing(WeightFormat.W4A16, group_size=8),
]
EXPECTED_NAMES = {
    WeightFormat.UNQUANTISED: {"w13", "w2"},
    WeightFormat.W4A8: {f"{w}{p}" for w in ("w13", "w2") for p in ("", "_scale", "_scale_bias")},
    WeightFormat.W4A16: {f"{w}{p}" for w in ("w13", "w2") for p in ("", "_scale", "_offset")},
}
SCALED = {"w13", "w13_scale", "w2", "w2_scale"}


def dense() -> DenseWeights:
    draw = torch.Generator().manual_seed(3)
    return DenseWeights(
        torch.randn((S, F, Z), generator=draw), torch.randn((S, Z, F // 2), generator=draw)
    )


def rows(num_rows: int = 7) -> Tensor:
    return torch.randn((num_rows, Z), generator=torch.Generator().manual_seed(5))


def packed(packing: Packing) -> PlainExpertWeights:
    return pack(dense(), packing, torch.float32)


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_a_format_names_every_tensor_that_it_has(packing: Packing) -> None:
    weights = packed(packing)
    assert type(weights) is packing.format.weights_type
    assert set(weights.named()) == EXPECTED_NAMES.get(packing.format, SCALED)
    assert all(stack.shape[0] == S for stack in weights.named().values())


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_room_for_other_slots_has_the_same_tensors(packing: Packing) -> None:
    weights = packed(packing)
    room = weights.allocate(5).named()
    assert [(n, t.dtype, t.shape[1:]) for n, t in weights.named().items()] == [
        (n, t.dtype, t.shape[1:]) for n, t in room.items()
    ]
    assert all(stack.shape[0] == 5 and not stack.view(torch.uint8).any() for stack in room.values())


def step_of(packing: Packing, w_SBA: Tensor) -> Tensor:
    """Return a bound of how far a weight may be from what it stands for."""
    by_output = w_SBA.abs().amax(dim=2, keepdim=True)
    match packing.format:
        case WeightFormat.UNQUANTISED:
            return torch.zeros_like(w_SBA)
        case WeightFormat.W8A8:
            return by_output / 127 / 2
        case WeightFormat.W8A8_FP8:
            return w_SBA.abs() / 16 + by_output / 448 * 2.0**-10
        case WeightFormat.W4A8:
            return by_output / 7 / 2 * (1 + 2.0**-11)  # the scale is one that float16 has
        case WeightFormat.W4A16:
            return 2 * by_output / 15  # the offset is rounded, too
        case WeightFormat.W8A8_MXFP8:
            return w_SBA.abs() / 8 + by_output * 2.0**-17  # up to 511 is kept as 448
        case WeightFormat.W4A8_MXFP | WeightFormat.W4A4_MXFP4 | WeightFormat.W4A16_MXFP4:
            return by_output / 4  # up to 8 is kept as 6


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_packed_weights_stand_for_the_nearest(packing: Packing) -> None:
    plain, stood_for = dense(), dense_of(packed(packing))
    for was, got in ((plain.w13_SFZ, stood_for.w13_SFZ), (plain.w2_SZI, stood_for.w2_SZI)):
        assert ((got - was).abs() <= step_of(packing, was) * (1 + 1e-5)).all()


def by_hand(weights: PlainExpertWeights, x_MZ: Tensor) -> Tensor:
    """Compute each row alone, in float64 but for what the format rounds."""
    stood_for = dense_of(weights)
    out: list[Tensor] = []
    slots = to_ints(torch.repeat_interleave(torch.arange(S), COUNTS.counts_S))
    for slot, row_Z in zip(slots, x_MZ, strict=True):
        x_1Z = dequantise(quantise(row_Z[None], weights.rows))
        gate_up = (x_1Z @ stood_for.w13_SFZ[slot].t()).to(x_MZ.dtype)
        hidden = dequantise(quantise(SwiGLU()(gate_up), weights.rows))
        out.append((hidden @ stood_for.w2_SZI[slot].t()).to(x_MZ.dtype))
    return torch.cat(out)


def computed(weights: PlainExpertWeights | BiasedWeights, x_MZ: Tensor, *, sent: RowForm) -> Tensor:
    dispatched = Dispatched(quantise(x_MZ, sent), COUNTS, COUNTS.counts_S[None], CLAIMS, None)
    return compute_grouped(dispatched, weights, activation=SwiGLU(), backend=CpuBackend()).rows_MZ


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_experts_compute_what_their_weights_stand_for(packing: Packing) -> None:
    weights, x_MZ = packed(packing), rows()
    want = by_hand(weights, x_MZ)
    got = computed(weights, x_MZ, sent=RowForm.PLAIN)
    assert ((got - want).abs() <= 1e-5 * want.abs().amax()).all()


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_quantising_before_sending_changes_no_bit(packing: Packing) -> None:
    weights, x_MZ = packed(packing), rows()
    here = computed(weights, x_MZ, sent=RowForm.PLAIN)
    assert torch.equal(here, computed(weights, x_MZ, sent=packing.format.rows))


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_every_tensor_of_a_format_is_read(packing: Packing) -> None:
    """One slot's tensor pick_rowsn from another expert changes that slot's output: none is idle."""
    weights, x_MZ = packed(packing), rows()
    before = computed(weights, x_MZ, sent=RowForm.PLAIN)
    for name in weights.named():
        moved = pack(dense(), packing, torch.float32)
        stack = moved.named()[name]
        stack[0] = moved.named()[name][1].clone()
        if torch.equal(stack[0].view(torch.uint8), weights.named()[name][0].view(torch.uint8)):
            continue  # both experts happen to have the same, as block scales may
        after = computed(moved, x_MZ, sent=RowForm.PLAIN)
        assert not torch.equal(before[:4], after[:4]), name
        assert torch.equal(before[4:], after[4:]), name


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_biases_are_added_after_each_linear(packing: Packing) -> None:
    weights, x_MZ = packed(packing), rows()
    bias13, bias2 = torch.randn(S, F), torch.randn(S, Z)
    only_last = BiasedWeights(weights, torch.zeros(S, F), bias2)
    plain = computed(weights, x_MZ, sent=RowForm.PLAIN)
    slots = torch.repeat_interleave(torch.arange(S), COUNTS.counts_S)
    assert torch.equal(computed(only_last, x_MZ, sent=RowForm.PLAIN), plain + bias2[slots])
    both = replace(only_last, bias13_SF=bias13)
    assert not torch.allclose(
        computed(both, x_MZ, sent=RowForm.PLAIN), plain + bias2[slots], atol=1e-2
    )
    assert set(both.named()) == {*weights.named(), "bias13", "bias2"}


def test_rows_of_another_form_are_refused() -> None:
    weights = packed(Packing(WeightFormat.W8A8))
    with pytest.raises(UnreadableRows, match="in the form fp8, but the experts here are"):
        computed(weights, rows(), sent=RowForm.FP8)


def test_widths_that_cannot_be_stored_are_refused() -> None:
    odd = DenseWeights(torch.zeros(1, 4, 5), torch.zeros(1, 5, 2))
    with pytest.raises(ShapeMismatch, match="inputs in groups of 5 and outputs in words of 8"):
        pack(odd, Packing(WeightFormat.W4A8), torch.float32)
    with pytest.raises(ShapeMismatch, match="an even row"):
        pack(odd, Packing(WeightFormat.W4A4_MXFP4), torch.float32)


def test_a_scale_of_another_shape_is_refused() -> None:
    weights = packed(Packing(WeightFormat.W8A8))
    assert fields(weights.w13)[0].name == "w_SBA"
    with pytest.raises(ShapeMismatch, match=r"scale of torch.float32 has shape \(1, 32\)"):
        replace(weights.w13, scale_SB=torch.zeros(1, F))
