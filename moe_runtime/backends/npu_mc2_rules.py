"""What the operators of MC2 can take, which have no text in the torch-npu wheel.

The limits are those known for their kernels, and what vllm-ascend passes.

Axes    B rows of a rank's block   K experts per row   P slots of all ranks
"""

import torch

from moe_runtime.backends.npu_given import Given
from moe_runtime.backends.npu_matmul_rule import E2M1, E4M3

__all__ = ["combine", "dispatch"]

_HALVES = (torch.bfloat16, torch.float16)
_INT32 = (torch.int32,)
_FLOAT32 = (torch.float32,)
_MOST_EXPERTS = 10240
_MOST_SENT = 16
_ELEMENTS: dict[int, tuple[int | None, ...]] = {2: (None, E4M3), 4: (E4M3, E2M1)}
"""What dispatch quantises to, by the way in which it does."""
_ASSIST = 128
"""int32 of assist information for each row that may arrive."""


def dispatch(given: Given) -> None:
    """Refuse what npu_moe_distribute_dispatch_v2 cannot take."""
    x = given.tensor("x", None, None, dtypes=_HALVES)
    _group(given, num_rows=x.shape[0])
    if _by_nodes(given):
        ids = given.tensor("expert_ids", x.shape[0], None, dtypes=_INT32)
        given.tensor("expert_scales", *ids.shape, dtypes=_FLOAT32)
    else:
        given.one_of(expert_scales=(None,))
    mode = given.arguments["quant_mode"]
    given.one_of(
        scales=(None,),
        quant_mode=(0, 2, 4),
        expert_token_nums_type=(1,),
        y_dtype=_ELEMENTS.get(mode, (None,)) if isinstance(mode, int) else (None,),
        x_dtype=(None,),
        scales_dtype=(None,),
    )


def combine(given: Given) -> None:
    """Refuse what npu_moe_distribute_combine_v2 cannot take."""
    rows = given.tensor("expand_x", None, None, dtypes=_HALVES)
    scales = given.tensor("expert_scales", None, None, dtypes=_FLOAT32)
    num_rows, most = _group(given, num_rows=scales.shape[0])
    ids = given.tensor("expert_ids", *scales.shape, dtypes=_INT32)
    if rows.shape[0] != most:
        raise given.refusal("expand_x", got=f"{rows.shape[0]} rows", expected=f"{most}")
    size = max(num_rows * ids.shape[1], most * _ASSIST)
    given.tensor("assist_info_for_combine", size, dtypes=_INT32)
    given.tensor("ep_send_counts", None, dtypes=_INT32)
    given.tensor("tp_send_counts", None, dtypes=_INT32)
    given.one_of(shared_expert_x=(None,), comm_quant_mode=(0,))
    if _by_nodes(given):
        given.tensor("expand_scales", most, dtypes=_FLOAT32)
    else:
        given.one_of(expand_scales=(None,))


def _by_nodes(given: Given) -> bool:
    """Tell whether the call is hierarchical, which takes weights along, and a mask with them."""
    given.one_of(comm_alg=("", "hierarchy"))
    if given.arguments["comm_alg"] != "hierarchy":
        return False
    if given.arguments["x_active_mask"] is None:
        raise given.refusal("x_active_mask", got="None", expected="one, beside comm_alg hierarchy")
    return True


def _group(given: Given, *, num_rows: int) -> tuple[int, int]:
    """Check what dispatch and combine have in common; return the rows, and those that may arrive.

    Ranks may bring uneven rows only without a mask, and then name the rows of all together.
    """
    ranks = given.number("ep_world_size", 2, 768)
    given.number("ep_rank_id", 0, ranks - 1)
    num_slots = given.number("moe_expert_num", ranks, _MOST_EXPERTS)
    if num_slots % ranks:
        raise given.refusal("moe_expert_num", got=f"{num_slots}", expected=f"a multiple of {ranks}")
    ids = given.tensor("expert_ids", num_rows, None, dtypes=_INT32)
    most_chosen = min(_MOST_SENT, num_slots)
    if not (num_rows >= 1 and 1 <= ids.shape[1] <= most_chosen):
        raise given.refusal(
            "expert_ids",
            got=f"of shape {tuple(ids.shape)}",
            expected=f"a row or more, of 1 to {most_chosen}",
        )
    name = given.arguments["group_ep"]
    if not isinstance(name, str) or not name:
        raise given.refusal("group_ep", got=repr(name), expected="the name of a communicator")
    given.one_of(
        group_tp=(name,),
        tp_world_size=(1,),
        tp_rank_id=(0,),
        expert_shard_type=(0,),
        shared_expert_num=(1,),
        shared_expert_rank_num=(0,),
    )
    if given.arguments["x_active_mask"] is None:
        total = given.number("global_bs", num_rows * ranks, 2**31 - 1)
        if total % ranks:
            raise given.refusal("global_bs", got=f"{total}", expected=f"a multiple of {ranks}")
    else:
        given.tensor("x_active_mask", num_rows, dtypes=(torch.bool,))
        given.number("global_bs", 0, 0)
        total = num_rows * ranks
    return num_rows, total * min(num_slots // ranks, ids.shape[1])
