"""What our own rules refuse before an operator is reached; nothing here needs torch-npu."""

from typing import Any

import pytest
import torch

from moe_runtime.backends.npu_backend import NpuBackend
from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_quantise import takes_swiglu
from moe_runtime.contracts.npu_errors import NpuCallRefused
from moe_runtime.contracts.rows import RowForm
from tests.npu.mistakes import COMBINE, DISPATCH, MOST, RIGHT, SWIGLU, by_rule
from tests.npu.pairings import F32, I32, I64, E, K, T, W, meta

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
