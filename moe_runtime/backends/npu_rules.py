"""What each Ascend operator that the runtime calls is documented to take.

The rules follow the texts that the torch-npu wheel carries for its operators. torch_npu's own
shape functions let most of these mistakes pass, and what a kernel makes of them is not known.

Axes    T, B rows   E experts to choose from   K experts per row   Z input width
        M rows sorted by slot
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch

from moe_runtime.backends.npu_given import Given
from moe_runtime.backends.npu_matmul_rule import E2M1, E4M3, grouped_matmul
from moe_runtime.backends.npu_mc2_rules import combine, dispatch
from moe_runtime.contracts.rows import BLOCK

__all__ = ["OLDEST", "RULES", "Rule"]

OLDEST = (2, 10, 0)
"""Of torch-npu; before it, operators have other arguments."""

_HALVES = (torch.bfloat16, torch.float16)
_FLOATS = (torch.float32, *_HALVES)
_INT32 = (torch.int32,)
_INT64 = (torch.int64,)
_FLOAT32 = (torch.float32,)
_MOST_CHOSEN_FROM = 2048
_LANE = 32
_MOST_EXPERTS = 10240
_MOST_PER_TOKEN = 512
_SWIGLU_LANE = 64
_FRACTAL = {torch.int8: (16, 32), torch.bfloat16: (16, 16), torch.float16: (16, 16)}
"""Rows and columns of a piece of a matrix in FRACTAL_NZ."""
_MOST_ACTIVATED = 10496


@dataclass(frozen=True, slots=True)
class Rule:
    """One operator: the arguments that every call names, and what they must be."""

    arguments: frozenset[str]
    check: Callable[[Given], None]


def _gating_top_k(given: Given) -> None:
    x = given.tensor("x", None, None, dtypes=_FLOATS)
    num_experts = x.shape[1]
    if num_experts > _MOST_CHOSEN_FROM:
        raise given.refusal("x", got=f"{num_experts} wide", expected=f"{_MOST_CHOSEN_FROM} at most")
    groups = given.number("group_count", 1, num_experts)
    size, rest = divmod(num_experts, groups)
    padded = groups * -(-size // _LANE) * _LANE
    if rest or (groups > 1 and (size <= 2 or padded > _MOST_CHOSEN_FROM)):
        raise given.refusal(
            "group_count",
            got=f"{groups} for {num_experts} experts",
            expected=f"groups of equal size, of 3 or more, {_MOST_CHOSEN_FROM} in all when "
            f"padded to {_LANE}",
        )
    kept = given.number("k_group", 1, groups)
    given.number("k", 1, kept * size)
    given.tensor_or_none("bias", num_experts, dtypes=(x.dtype,))
    given.one_of(group_select_mode=(0, 1), renorm=(0,), norm_type=(0, 1), out_flag=(False,))
    given.positive("routed_scaling_factor")
    given.positive("eps")


def _init_routing(given: Given) -> None:
    x = given.tensor("x", None, None, dtypes=(*_FLOATS, torch.int8))
    ids = given.tensor("expert_idx", x.shape[0], None, dtypes=_INT32)
    given.number("active_num", ids.numel(), ids.numel())
    num_experts = given.number("expert_num", 1, _MOST_EXPERTS)
    match given.arguments["active_expert_range"]:
        case [int(low), int(high)] if 0 <= low < high <= num_experts:
            pass
        case other:
            raise given.refusal(
                "active_expert_range",
                got=repr(other),
                expected=f"[first, end] with 0 <= first < end <= {num_experts}",
            )
    given.one_of(
        offset=(None,),
        expert_capacity=(-1,),
        drop_pad_mode=(0,),
        expert_tokens_num_type=(1,),
        expert_tokens_num_flag=(True,),
        quant_mode=(-1,) if x.dtype == torch.int8 else (-1, 1),
        row_idx_type=(0,),
        x_dtype=(None,),
    )
    given.tensor_or_none("scale", x.shape[0], dtypes=_FLOAT32)
    if given.arguments["quant_mode"] == 1:
        given.one_of(scale=(None,))


def _dynamic_quant(given: Given) -> None:
    given.tensor("input", None, None, dtypes=_HALVES)
    given.one_of(
        smooth_scales=(None,),
        group_index=(None,),
        dst_type=(torch.int8, torch.float8_e4m3fn),
        quant_mode=("pertoken",),
    )


def _dynamic_mx_quant(given: Given) -> None:
    x = given.tensor("input", None, None, dtypes=_HALVES)
    given.one_of(
        axis=(-1,),
        round_mode=("rint",),
        dst_type=(E4M3, E2M1),
        block_size=(BLOCK,),
        scale_alg=(0,),
    )
    if given.arguments["dst_type"] == E2M1 and x.shape[1] % 2:
        raise given.refusal("input", got=f"{x.shape[1]} wide", expected="an even width")


def _token_unpermute(given: Given) -> None:
    rows = given.tensor("permuted_tokens", None, None, dtypes=_FLOATS)
    probs = given.tensor("probs", None, None, dtypes=(rows.dtype,))
    if not 1 <= probs.shape[1] <= _MOST_PER_TOKEN:
        raise given.refusal(
            "probs", got=f"{probs.shape[1]} per token", expected=f"1 to {_MOST_PER_TOKEN}"
        )
    if rows.shape[0] != probs.numel():
        raise given.refusal(
            "permuted_tokens", got=f"{rows.shape[0]} rows", expected=f"{probs.numel()}"
        )
    given.tensor("sorted_indices", probs.numel(), dtypes=_INT32)
    given.one_of(padded_mode=(False,), restore_shape=(None,))


def _format_cast(given: Given) -> None:
    x = given.tensor("input", None, None, dtypes=(*_HALVES, torch.int8))
    rows, columns = _FRACTAL[x.dtype]
    if not x.numel() or x.shape[0] % rows or x.shape[1] % columns:
        raise given.refusal(
            "input",
            got=f"{tuple(x.shape)} of {x.dtype}",
            expected=f"multiples of {rows} by {columns}, which are not padded",
        )
    given.one_of(acl_format=(29,), customize_dtype=(None,))


def _dequant_swiglu_quant(given: Given) -> None:
    x = given.tensor("x", None, None, dtypes=(torch.bfloat16,))
    if x.shape[1] % (2 * _SWIGLU_LANE) or not 0 < x.shape[1] <= 2 * _MOST_ACTIVATED:
        raise given.refusal(
            "x",
            got=f"{x.shape[1]} wide",
            expected=f"a multiple of {2 * _SWIGLU_LANE}, {2 * _MOST_ACTIVATED} at most",
        )
    given.tensor("group_index", None, dtypes=_INT64)
    absent = "weight_scale activation_scale bias quant_scale quant_offset dst_type round_mode"
    given.one_of(**dict.fromkeys((*absent.split(), "activate_dim"), (None,)))
    given.one_of(activate_left=(True,), quant_mode=(1,), swiglu_mode=(0,))
    given.one_of(clamp_limit=(7.0,), glu_alpha=(1.702,), glu_bias=(1.0,))


_GROUP = """expert_ids group_ep ep_world_size ep_rank_id moe_expert_num x_active_mask group_tp
    tp_world_size tp_rank_id expert_shard_type shared_expert_num shared_expert_rank_num global_bs
    comm_alg"""


def _rule(arguments: str, check: Callable[[Given], None]) -> Rule:
    return Rule(frozenset(arguments.split()), check)


RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {
        "npu_moe_gating_top_k": _rule(
            """x k bias k_group group_count group_select_mode renorm norm_type out_flag
            routed_scaling_factor eps""",
            _gating_top_k,
        ),
        "npu_moe_init_routing_v2": _rule(
            """x expert_idx scale offset active_num expert_capacity expert_num drop_pad_mode
            expert_tokens_num_type expert_tokens_num_flag quant_mode active_expert_range
            row_idx_type x_dtype""",
            _init_routing,
        ),
        "npu_grouped_matmul": _rule(
            """x weight bias scale antiquant_scale antiquant_offset per_token_scale group_list
            split_item group_type group_list_type act_type output_dtype x_dtype weight_dtype
            scale_dtype per_token_scale_dtype""",
            grouped_matmul,
        ),
        "npu_dynamic_quant": _rule(
            "input smooth_scales group_index dst_type quant_mode", _dynamic_quant
        ),
        "npu_dynamic_mx_quant": _rule(
            "input axis round_mode dst_type block_size scale_alg", _dynamic_mx_quant
        ),
        "npu_dequant_swiglu_quant": _rule(
            """x weight_scale activation_scale bias quant_scale quant_offset group_index
            activate_left quant_mode dst_type round_mode activate_dim swiglu_mode clamp_limit
            glu_alpha glu_bias""",
            _dequant_swiglu_quant,
        ),
        "npu_format_cast": _rule("input acl_format customize_dtype", _format_cast),
        "npu_moe_token_unpermute": _rule(
            "permuted_tokens sorted_indices probs padded_mode restore_shape", _token_unpermute
        ),
        "npu_moe_distribute_dispatch_v2": _rule(
            f"x scales expert_scales quant_mode expert_token_nums_type y_dtype x_dtype "
            f"scales_dtype {_GROUP}",
            dispatch,
        ),
        "npu_moe_distribute_combine_v2": _rule(
            f"expand_x assist_info_for_combine ep_send_counts expert_scales tp_send_counts "
            f"expand_scales shared_expert_x comm_quant_mode {_GROUP}",
            combine,
        ),
    }
)
