"""What our own rules refuse before an operator is reached; nothing here needs torch-npu."""

from typing import Any

import pytest
import torch

from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_ffn import Arrangements
from moe_runtime.backends.npu_quantise import takes_swiglu
from moe_runtime.contracts.npu_errors import NpuCallRefused, NpuKernelMissing
from moe_runtime.contracts.rows import RowForm
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.formats.packing import Packing, WeightFormat, pack
from tests.npu.mistakes import COMBINE, DISPATCH, MOST, RIGHT, SWIGLU, by_rule
from tests.npu.pairings import F32, I8, I32, I64, E, K, T, W, meta

BY_NODES: dict[str, dict[str, Any]] = {
    DISPATCH: {
        **RIGHT[DISPATCH],
        "comm_alg": "hierarchy",
        "expert_scales": meta(T, K, dtype=F32),
    },
    COMBINE: {
        **RIGHT[COMBINE],
        "comm_alg": "hierarchy",
        "expand_scales": meta(MOST, dtype=F32),
    },
}


class Answers:
    """Operators that are there, and give nothing back."""

    def __getattr__(self, name: str) -> Any:
        del name

        def nothing(**given: object) -> tuple[()]:
            del given
            return ()

        return nothing


@pytest.mark.parametrize("operator", [DISPATCH, COMBINE])
def test_a_right_hierarchical_call_goes_out(operator: str) -> None:
    assert NpuDoor(Answers(), torch.device("meta")).call(operator, **BY_NODES[operator]) == ()


@pytest.mark.parametrize(
    ("operator", "wrong"),
    [
        (DISPATCH, {"expert_scales": None}),
        (DISPATCH, {"expert_scales": meta(T, K)}),
        (DISPATCH, {"x_active_mask": None, "global_bs": 4 * T}),
        (DISPATCH, {"comm_alg": "hierarchic"}),
        (DISPATCH, {"comm_alg": ""}),
        (COMBINE, {"expand_scales": None}),
        (COMBINE, {"expand_scales": meta(MOST - 1, dtype=F32)}),
        (COMBINE, {"comm_alg": ""}),
    ],
)
def test_a_hierarchical_call_with_one_thing_wrong_is_refused(
    operator: str, wrong: dict[str, Any]
) -> None:
    assert by_rule(operator, {**BY_NODES[operator], **wrong}) == "rule"


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": meta(T * K, 4 * W - 2)},
        {"x": meta(T * K, 4 * W, dtype=torch.float16)},
        {"x": meta(T * K, 4 * W, dtype=I32)},
        {"group_index": meta(E, dtype=I32)},
        {"group_index": None},
        {"activate_left": False},
        {"swiglu_mode": 1},
        {"quant_mode": 0},
        {"bias": meta(4 * W, dtype=I32)},
        {"group_index": meta(E, K, dtype=I64)},
    ],
)
def test_a_fused_activation_with_one_thing_wrong_is_refused(wrong: dict[str, Any]) -> None:
    assert by_rule(SWIGLU, {**RIGHT[SWIGLU], **wrong}) == "rule"


def test_what_the_fused_activation_does_not_take_goes_through_two_operators() -> None:
    assert takes_swiglu(meta(3, 128), RowForm.INT8)
    assert not takes_swiglu(meta(3, 128), RowForm.FP8)
    assert not takes_swiglu(meta(3, 128, dtype=torch.float16), RowForm.INT8)
    assert not takes_swiglu(meta(3, 96), RowForm.INT8)
    assert not takes_swiglu(meta(0, 128), RowForm.INT8)
    assert not takes_swiglu(meta(3, 2 * 10496 + 128), RowForm.INT8)


def test_a_backend_that_was_not_told_so_fuses_nothing() -> None:
    assert not NpuBackend(NpuDoor(object(), torch.device("meta"))).fuses


def test_a_refusal_says_that_nothing_was_called() -> None:
    door = NpuDoor(Answers(), torch.device("meta"))
    with pytest.raises(NpuCallRefused, match="swiglu_mode is 1, expected 0; the operator was not"):
        door.call(SWIGLU, **{**RIGHT[SWIGLU], "swiglu_mode": 1})


FFN_WIDTH = 256
FFN: dict[str, Any] = {
    "x": meta(T, FFN_WIDTH),
    "weight1": [meta(FFN_WIDTH, 4 * W, dtype=I8)] * 2,
    "weight2": [meta(2 * W, FFN_WIDTH, dtype=I8)] * 2,
    "expert_idx": meta(T, K, dtype=I32),
    "scale1": [meta(4 * W, dtype=I64)] * 2,
    "scale2": [meta(FFN_WIDTH, dtype=I64)] * 2,
    "bias1": [],
    "bias2": [],
    "probs": meta(T, K, dtype=F32),
    "group": "g",
    "max_output_size": 64,
    "out": meta(T, FFN_WIDTH),
    "expert_token_nums": meta(2, dtype=I32),
    "x_active_mask": meta(T, dtype=torch.bool),
    "swiglu_limit": 0.0,
}
PLAIN_FFN = {
    **FFN,
    "weight1": [meta(FFN_WIDTH, 4 * W)] * 2,
    "weight2": [meta(2 * W, FFN_WIDTH)] * 2,
    "scale1": [meta(0, dtype=I64)],
    "scale2": [meta(0, dtype=I64)],
    "x_active_mask": None,
}


def fused(given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    door = NpuDoor(object(), torch.device("meta"), Answers())
    return door.call_custom("dispatch_ffn_combine", **given)


@pytest.mark.parametrize("right", [FFN, PLAIN_FFN, {**FFN, "swiglu_limit": 7.0}])
def test_a_right_call_of_the_fused_operator_goes_out(right: dict[str, Any]) -> None:
    assert fused(right) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {**FFN, "x": meta(T, FFN_WIDTH, dtype=F32)},
        {**FFN, "x": meta(T, 64)},
        {**FFN, "expert_idx": meta(T, K, dtype=I64)},
        {**FFN, "expert_idx": meta(T, 17, dtype=I32)},
        {**FFN, "probs": meta(T, K)},
        {**FFN, "probs": meta(T + 1, K, dtype=F32)},
        {**FFN, "out": meta(T, FFN_WIDTH, dtype=torch.float16)},
        {**FFN, "weight1": [meta(FFN_WIDTH, 4 * W, dtype=I32)] * 2},
        {**FFN, "weight1": [meta(4 * W, FFN_WIDTH, dtype=I8)] * 2},
        {**FFN, "weight1": meta(2, FFN_WIDTH, 4 * W, dtype=I8)},
        {**FFN, "weight2": [meta(2 * W, FFN_WIDTH, dtype=I8)]},
        {**FFN, "weight2": [meta(2 * W, FFN_WIDTH)] * 2},
        {**FFN, "scale1": [meta(4 * W, dtype=F32)] * 2},
        {**FFN, "scale1": [meta(4 * W, dtype=I64)]},
        {**FFN, "bias1": [meta(4 * W, dtype=F32)]},
        {**FFN, "group": ""},
        {**FFN, "max_output_size": 0},
        {**FFN, "expert_token_nums": meta(2, dtype=I64)},
        {**FFN, "x_active_mask": None},
        {**FFN, "x_active_mask": meta(T - 1, dtype=torch.bool)},
        {**FFN, "swiglu_limit": -1.0},
        {**FFN, "swiglu_limit": float("inf")},
        {**PLAIN_FFN, "x_active_mask": meta(T, dtype=torch.bool)},
        {**PLAIN_FFN, "swiglu_limit": 7.0},
        {**PLAIN_FFN, "scale1": [meta(4 * W, dtype=I64)] * 2},
        {**PLAIN_FFN, "out": torch.empty(T, FFN_WIDTH, dtype=torch.bfloat16)},
    ],
)
def test_a_call_of_the_fused_operator_with_one_thing_wrong_is_refused(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(NpuCallRefused, match="the operator was not called"):
        fused(wrong)


def test_a_custom_operator_that_nobody_registered_is_missing_and_not_replaced() -> None:
    with pytest.raises(NpuKernelMissing, match="dispatch_ffn_combine has no Ascend operator here"):
        NpuDoor(object(), torch.device("meta")).call_custom("dispatch_ffn_combine", **FFN)


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": meta(8, 32)},
        {"input": meta(16, 16, dtype=I8)},
        {"input": meta(16, 32, dtype=I32)},
        {"input": meta(0, 32)},
        {"acl_format": 2},
        {"customize_dtype": 1},
    ],
)
def test_a_matrix_that_would_be_padded_is_not_arranged(wrong: dict[str, Any]) -> None:
    assert by_rule("npu_format_cast", {**RIGHT["npu_format_cast"], **wrong}) == "rule"


def test_formats_that_the_fused_operator_is_not_called_for_are_refused_by_name() -> None:
    dense = DenseWeights(torch.ones(1, 32, 16), torch.ones(1, 16, 16))
    packed = pack(dense, Packing(WeightFormat.W8A8_FP8), torch.bfloat16)
    arrangements = Arrangements(NpuDoor(object(), torch.device("cpu")))
    with pytest.raises(NpuKernelMissing, match="fused MC2 of W8A8Fp8Weights"):
        arrangements.of(packed)
