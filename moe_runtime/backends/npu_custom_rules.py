"""What custom operators can take: those of `_C_ascend`, which comes with vllm-ascend.

They have no text; the rules follow their sources and what vllm-ascend passes.

Axes    B rows of a rank's block   K experts per row   Z width   I expert width   F = 2 I
        S local slots
"""

from types import MappingProxyType

import torch

from moe_runtime.backends.npu_given import Given
from moe_runtime.backends.npu_rules import Rule

__all__ = ["CUSTOM_RULES"]

_HALVES = (torch.bfloat16, torch.float16)
_INT32 = (torch.int32,)
_INT64 = (torch.int64,)
_FLOAT32 = (torch.float32,)
_MOST_SENT = 16
_NARROWEST, _WIDEST = 256, 65535


def _dispatch_ffn_combine(given: Given) -> None:
    x = given.tensor("x", None, None, dtypes=_HALVES)
    num_rows, width = x.shape
    if not _NARROWEST <= width <= _WIDEST or not num_rows:
        raise given.refusal(
            "x",
            got=f"of shape {tuple(x.shape)}",
            expected=f"a row or more, {_NARROWEST} to {_WIDEST} wide",
        )
    ids = given.tensor("expert_idx", num_rows, None, dtypes=_INT32)
    if not 1 <= ids.shape[1] <= _MOST_SENT:
        raise given.refusal(
            "expert_idx", got=f"{ids.shape[1]} of a row", expected=f"1 to {_MOST_SENT}"
        )
    given.tensor("probs", *ids.shape, dtypes=_FLOAT32)
    given.tensor("out", num_rows, width, dtypes=(x.dtype,))
    first = given.each("weight1", width, None, dtypes=(torch.int8, x.dtype))
    num_slots, wide, stored = len(first), first[0].shape[1], first[0].dtype
    if wide % 2:
        raise given.refusal("weight1", got=f"{wide} outputs", expected="gate and up, as many each")
    second = given.each("weight2", wide // 2, width, dtypes=(stored,))
    if len(second) != num_slots:
        raise given.refusal("weight2", got=f"{len(second)} tensors", expected=f"{num_slots}")
    given.tensor("expert_token_nums", num_slots, dtypes=_INT32)
    is_int8 = stored is torch.int8
    for name, size in (("scale1", wide), ("scale2", width)):
        scales = given.each(name, size if is_int8 else 0, dtypes=_INT64)
        if len(scales) != (num_slots if is_int8 else 1):
            raise given.refusal(
                name, got=f"{len(scales)} tensors", expected=f"{num_slots if is_int8 else 1}"
            )
    for name in ("bias1", "bias2"):
        if given.arguments[name] != []:
            raise given.refusal(name, got="a bias", expected="none: int4 experts alone have one")
    given.number("max_output_size", 1, 2**31 - 1)
    _mask_and_limit(given, num_rows=num_rows, is_int8=is_int8)


def _mask_and_limit(given: Given, *, num_rows: int, is_int8: bool) -> None:
    """Refuse a mask and a limit where the kernel would drop them without a word."""
    group, limit = given.arguments["group"], given.arguments["swiglu_limit"]
    if not isinstance(group, str) or not group:
        raise given.refusal("group", got=repr(group), expected="the name of a communicator")
    if not isinstance(limit, float) or not 0 <= limit < float("inf"):
        raise given.refusal("swiglu_limit", got=repr(limit), expected="a float, 0 for none")
    if is_int8:
        given.tensor("x_active_mask", num_rows, dtypes=(torch.bool,))
    else:
        given.one_of(x_active_mask=(None,), swiglu_limit=(0.0,))


_FFN = """x weight1 weight2 expert_idx scale1 scale2 bias1 bias2 probs group max_output_size out
    expert_token_nums x_active_mask swiglu_limit"""

CUSTOM_RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {"dispatch_ffn_combine": Rule(frozenset(_FFN.split()), _dispatch_ffn_combine)}
)
