"""Calls of Ascend operators with one thing wrong each, and who refuses them.

    python -m tests.npu.mistakes

Prints, as JSON, for each mistake: `schema`, `meta`, `rule` (our own check), or `not called` for an
operator that the backend has no call for; `accepted` is what the test fails on. Rules are asked
also where schema or Meta refuse, so that nothing depends on them. Runs beside torch_npu.
"""

import json
from collections.abc import Iterable
from typing import Any

import torch

from moe_runtime.backends.npu_door import NpuDoor
from moe_runtime.backends.npu_rules import RULES
from moe_runtime.contracts.npu_errors import NpuCallRefused
from tests.npu.opening import say_nz_has_shapes
from tests.npu.pairings import (
    ABSENT,
    F32,
    I8,
    I32,
    I64,
    IN_FORMATS,
    PAIRINGS,
    Arguments,
    E,
    H,
    K,
    N,
    T,
    W,
    int_rows,
    meta,
)

GROUP: Arguments = {
    "expert_ids": meta(T, K, dtype=I32),
    "group_ep": "g",
    "ep_world_size": N,
    "ep_rank_id": 0,
    "moe_expert_num": E,
    "x_active_mask": meta(T, dtype=torch.bool),
    "group_tp": "g",
    "tp_world_size": 1,
    "tp_rank_id": 0,
    "expert_shard_type": 0,
    "shared_expert_num": 1,
    "shared_expert_rank_num": 0,
    "global_bs": 0,
    "comm_alg": "",
}
MOST = T * N * K
RIGHT: dict[str, Arguments] = {
    "npu_moe_gating_top_k": {
        "x": meta(T, E, dtype=F32),
        "k": K,
        "bias": meta(E, dtype=F32),
        "k_group": 1,
        "group_count": 1,
        "group_select_mode": 1,
        "renorm": 0,
        "norm_type": 1,
        "out_flag": False,
        "routed_scaling_factor": 1.0,
        "eps": 1e-20,
    },
    "npu_moe_init_routing_v2": {
        "x": meta(T, H),
        "expert_idx": meta(T, K, dtype=I32),
        "scale": None,
        "offset": None,
        "active_num": T * K,
        "expert_capacity": -1,
        "expert_num": E,
        "drop_pad_mode": 0,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "quant_mode": -1,
        "active_expert_range": [0, E],
        "row_idx_type": 0,
        "x_dtype": None,
    },
    "npu_grouped_matmul": {
        "x": [meta(T * K, H)],
        "weight": [meta(E, H, 2 * W)],
        "bias": None,
        "scale": None,
        "antiquant_scale": None,
        "antiquant_offset": None,
        "per_token_scale": None,
        "group_list": meta(E, dtype=I64),
        "split_item": 3,
        "group_type": 0,
        "group_list_type": 0,
        "act_type": 0,
        "output_dtype": torch.bfloat16,
        "x_dtype": None,
        "weight_dtype": None,
        "scale_dtype": None,
        "per_token_scale_dtype": None,
    },
    "npu_dynamic_quant": {
        "input": meta(T, H),
        "smooth_scales": None,
        "group_index": None,
        "dst_type": I8,
        "quant_mode": "pertoken",
    },
    "npu_dynamic_mx_quant": {
        "input": meta(T, H),
        "axis": -1,
        "round_mode": "rint",
        "dst_type": 292,
        "block_size": 32,
        "scale_alg": 0,
    },
    "npu_format_cast": {"input": meta(H, 2 * W), "acl_format": 29, "customize_dtype": None},
    "npu_dequant_swiglu_quant": {
        "x": meta(T * K, 4 * W),
        "weight_scale": None,
        "activation_scale": None,
        "bias": None,
        "quant_scale": None,
        "quant_offset": None,
        "group_index": meta(E, dtype=I64),
        "activate_left": True,
        "quant_mode": 1,
        "dst_type": None,
        "round_mode": None,
        "activate_dim": None,
        "swiglu_mode": 0,
        "clamp_limit": 7.0,
        "glu_alpha": 1.702,
        "glu_bias": 1.0,
    },
    "npu_moe_token_unpermute": {
        "permuted_tokens": meta(T * K, H),
        "sorted_indices": meta(T * K, dtype=I32),
        "probs": meta(T, K),
        "padded_mode": False,
        "restore_shape": None,
    },
    "npu_moe_distribute_dispatch_v2": {
        **GROUP,
        "x": meta(T, H),
        "scales": None,
        "expert_scales": None,
        "quant_mode": 0,
        "expert_token_nums_type": 1,
        "y_dtype": None,
        "x_dtype": None,
        "scales_dtype": None,
    },
    "npu_moe_distribute_combine_v2": {
        **GROUP,
        "expand_x": meta(MOST, H),
        "assist_info_for_combine": meta(MOST * 128, dtype=I32),
        "ep_send_counts": meta(E, dtype=I32),
        "expert_scales": meta(T, K, dtype=F32),
        "tp_send_counts": meta(1, dtype=I32),
        "expand_scales": None,
        "shared_expert_x": None,
        "comm_quant_mode": 0,
    },
}
"""One right call of each operator: every mistake is one of these with one thing changed."""

GATING, ROUTING, MATMUL = "npu_moe_gating_top_k", "npu_moe_init_routing_v2", "npu_grouped_matmul"
UNPERMUTE, QUANT = "npu_moe_token_unpermute", "npu_dynamic_quant"
SWIGLU = "npu_dequant_swiglu_quant"
DISPATCH, COMBINE = "npu_moe_distribute_dispatch_v2", "npu_moe_distribute_combine_v2"

MISTAKES: list[tuple[str, str, Arguments]] = [
    ("a misspelt argument", GATING, {"groupcount": 1}),
    ("k left out", GATING, {"k": ABSENT}),
    ("k not whole", GATING, {"k": 2.5}),
    ("logits of three axes", GATING, {"x": meta(1, T, E, dtype=F32)}),
    ("a correction of two axes", GATING, {"bias": meta(1, E, dtype=F32)}),
    ("a correction of another length", GATING, {"bias": meta(E + 1, dtype=F32)}),
    ("more chosen than there are", GATING, {"k": 99}),
    ("an unknown score", GATING, {"norm_type": 7}),
    ("whole logits", GATING, {"x": meta(T, E, dtype=I64)}),
    ("a flag in words", ROUTING, {"expert_tokens_num_flag": "yes"}),
    ("a range of three", ROUTING, {"active_expert_range": [0, 1, 2]}),
    ("ids of one axis", ROUTING, {"expert_idx": meta(T, dtype=I32)}),
    ("more ids than rows", ROUTING, {"expert_idx": meta(T + 1, K, dtype=I32)}),
    ("ids of 64 bits", ROUTING, {"expert_idx": meta(T, K, dtype=I64)}),
    ("a range backwards", ROUTING, {"active_expert_range": [8, 0]}),
    ("an unknown quantisation", ROUTING, {"quant_mode": 10}),
    ("a range beyond the experts", ROUTING, {"active_expert_range": [0, 999]}),
    ("ids on the host", ROUTING, {"expert_idx": torch.zeros(T, K, dtype=I32)}),
    ("a tensor in the place of a list", MATMUL, {"x": meta(T * K, H)}),
    ("inner widths that differ", MATMUL, {"weight": [meta(E, H + 1, 2 * W)]}),
    ("fewer groups than experts", MATMUL, {"weight": [meta(E + 3, H, 2 * W)]}),
    ("groups of 32 bits", MATMUL, {"group_list": meta(E, dtype=I32)}),
    ("groups as a list", MATMUL, {"group_list": [2, 4]}),
    ("no axis of groups", MATMUL, {"group_type": ABSENT}),
    ("another axis of groups", MATMUL, {"group_type": 1}),
    ("an unknown kind of groups", MATMUL, {"group_list_type": 9}),
    ("int8 rows by bfloat16 weights", MATMUL, {"x": [meta(T * K, H, dtype=I8)]}),
    ("int8 without scales", MATMUL, int_rows(scale=None, per_token_scale=None)),
    ("int64 out", MATMUL, {"output_dtype": I64}),
    ("indices of two axes", UNPERMUTE, {"sorted_indices": meta(T, K, dtype=I32)}),
    ("weights of one axis", UNPERMUTE, {"probs": meta(T * K)}),
    ("rows that do not divide", UNPERMUTE, {"sorted_indices": meta(T * K - 1, dtype=I32)}),
    ("weights for other rows", UNPERMUTE, {"probs": meta(T + 5, K)}),
    ("no communicator", DISPATCH, {"group_ep": None}),
    ("a rank beyond the group", DISPATCH, {"ep_rank_id": 9}),
    ("experts that do not divide", DISPATCH, {"moe_expert_num": E - 1}),
    ("ids of 64 bits", DISPATCH, {"expert_ids": meta(T, K, dtype=I64)}),
    ("too little assist information", COMBINE, {"assist_info_for_combine": meta(3, dtype=I32)}),
    ("scales of other rows", SWIGLU, {"activation_scale": meta(T + 5, dtype=F32)}),
    ("whole numbers to quantise", QUANT, {"input": meta(T, H, dtype=I32)}),
]

BY_POSITION = ("a keyword by position", GATING, (meta(T, E, dtype=F32), K, meta(E, dtype=F32)))

NOT_CALLED: list[tuple[str, str, tuple[object, ...]]] = [
    ("odd width", "npu_swiglu", (meta(T, 7),)),
    ("whole numbers", "npu_swiglu", (meta(T, 8, dtype=I64),)),
    ("two weights", "npu_grouped_matmul_swiglu_quant_v2", (meta(T * K, H, dtype=I8),)),
    ("scales of other rows", "npu_moe_finalize_routing", (meta(T * K, H), None, None, None)),
    ("tokens of three axes", "npu_moe_token_permute", (meta(1, T, H), meta(T, K, dtype=I32))),
    ("a rank beyond the group", "npu_moe_distribute_dispatch", (meta(T, H), meta(T, K, dtype=I32))),
    ("counts of one axis", "npu_moe_re_routing", (meta(T * K, H), meta(E, dtype=I64))),
]
"""Operators that have no rule, since the backend never calls them: the door knows none of them."""


class _Unanswering:
    """Operators that must not be reached: a refusal by a rule comes before the call."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was reached")


def changed(operator: str, change: Arguments) -> Arguments:
    given = {**RIGHT[operator], **change}
    return {name: value for name, value in given.items() if value is not ABSENT}


def by_torch(operator: str, given: Iterable[object], named: Arguments) -> str:
    """Who in torch_npu refuses a call: `schema`, `meta` or nobody, ``."""
    overloads = getattr(torch.ops.npu, operator)
    try:
        overloads(*given, **named)
    except TypeError:
        return "schema"
    except (RuntimeError, NotImplementedError, IndexError, ValueError, AttributeError) as refused:
        # The dispatcher's own words for arguments that fit no overload.
        unfit = ("Expected a value of type", "is missing value", "Unknown keyword", "expected at")
        return "schema" if any(words in str(refused) for words in unfit) else "meta"
    return ""


def by_rule(operator: str, named: Arguments) -> str:
    door = NpuDoor(_Unanswering(), torch.device("meta"))
    try:
        door.call(operator, **named)
    except NpuCallRefused:
        return "rule" if operator in RULES else "not called"
    raise AssertionError("a call neither refused nor made")


def main() -> None:
    door = NpuDoor(torch.ops.npu, torch.device("meta"))
    shaped = say_nz_has_shapes()
    for operator in RULES:
        door.call(operator, **RIGHT[operator])
    for pairing in PAIRINGS.values():
        door.call(MATMUL, **{**RIGHT[MATMUL], **pairing})
    for pairing, wrong in IN_FORMATS:
        assert by_rule(MATMUL, {**RIGHT[MATMUL], **PAIRINGS[pairing], **wrong}) == "rule"
    told: dict[str, list[str]] = {}
    for what, operator, change in MISTAKES:
        given = changed(operator, change)
        told[f"{operator}: {what}"] = [by_torch(operator, (), given), by_rule(operator, given)]
    what, operator, positional = BY_POSITION
    told[f"{operator}: {what}"] = [by_torch(operator, positional, {}), ""]
    for what, operator, _ in NOT_CALLED:
        told[f"{operator}: {what}"] = ["", by_rule(operator, {})]
    del shaped
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]

    main()
