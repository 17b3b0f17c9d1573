# pyright: reportPrivateUsage=false
# Off in this file only: torch tells of writes to a tensor in no public place.
"""What is checked of choices that the runtime did not make itself.

Axes    T tokens   K experts per token   V token ids
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from moe_runtime.contracts.errors import (
    BadChoice,
    ImpossibleRouting,
    MissingTokenIds,
    ShapeMismatch,
    TokenIdOutOfRange,
)
from moe_runtime.contracts.tokens import NoTokenIds, TokenIds
from moe_runtime.contracts.torch_calls import to_ints, unique_ints
from moe_runtime.routing.kinds import HashRouting, OnInputRouting, Routing

__all__ = [
    "check_batch_ids",
    "check_experts",
    "check_table",
    "check_token_ids",
    "check_unchanged",
    "check_weights",
    "state_of",
]

_INTEGERS = frozenset({torch.int16, torch.int32, torch.int64})


def check_experts(who: str, ids_TK: Tensor, *, num_experts: int) -> Tensor:
    """Return the ids as int64; raises BadChoice unless each row names distinct experts."""
    if ids_TK.dtype not in _INTEGERS:
        raise BadChoice(who, reason=f"gave experts as {ids_TK.dtype}, expected integers")
    ids_TK = ids_TK.long()
    outside_TK = (ids_TK < 0) | (ids_TK >= num_experts)
    if outside_TK.any():
        raise BadChoice(
            who,
            reason=f"chose experts {unique_ints(ids_TK[outside_TK])}, expected 0 to "
            f"{num_experts - 1}",
        )
    sorted_TK = ids_TK.sort(dim=1).values
    repeats_T = (sorted_TK[:, 1:] == sorted_TK[:, :-1]).any(dim=1)
    if repeats_T.any():
        row = int(repeats_T.long().argmax())
        raise BadChoice(
            who,
            reason=f"chose an expert twice for {int(repeats_T.sum())} tokens, the first of them "
            f"{to_ints(ids_TK[row])}; experts of a token must be distinct",
        )
    return ids_TK


def state_of(given: Sequence[Tensor]) -> tuple[int | Tensor, ...]:
    """Return what tells later whether somebody has written to tensors."""
    if torch.compiler.is_compiling():
        return ()  # a tracer makes functions of what writes in place, or refuses it
    # Tensors of inference mode do not count writes to them.
    return tuple(_bytes(t).clone() if t.is_inference() else t._version for t in given)


def check_unchanged(who: str, given: Sequence[Tensor], before: tuple[int | Tensor, ...]) -> None:
    """Raise BadChoice if somebody has written to one of the tensors."""
    for tensor, state in zip(given, before, strict=bool(before)):
        same = (
            torch.equal(_bytes(tensor), state)
            if isinstance(state, Tensor)
            else tensor._version == state
        )
        if not same:
            raise BadChoice(who, reason="changed what it was given in place, which others read too")


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def check_weights(who: str, weights_TK: Tensor, *, shape: tuple[int, int]) -> None:
    """Raise ShapeMismatch or BadChoice unless the weights are one number for each pair."""
    if weights_TK.shape != shape:
        raise ShapeMismatch(f"{who}'s weights", got=weights_TK.shape, expected=f"{shape}")
    if not weights_TK.is_floating_point():
        raise BadChoice(who, reason=f"gave weights as {weights_TK.dtype}, expected a float type")


def check_table(routing: HashRouting, experts_VK: Tensor) -> Tensor:
    """Return the table as int64; raises ShapeMismatch or ImpossibleRouting.

    That rows are distinct is checked when they are used: rows of ids that no token has may be
    filled with anything.
    """
    expected = (routing.vocabulary, routing.top_k)
    if experts_VK.shape != expected or experts_VK.dtype not in _INTEGERS:
        raise ShapeMismatch(
            f"routing table of {experts_VK.dtype}",
            got=experts_VK.shape,
            expected=f"integers {expected}",
        )
    outside_VK = (experts_VK < 0) | (experts_VK >= routing.num_experts)
    if outside_VK.any():
        raise ImpossibleRouting(
            f"the routing table names experts {unique_ints(experts_VK[outside_VK])}, expected 0 "
            f"to {routing.num_experts - 1}; the layer was not built"
        )
    return experts_VK.long()


def check_batch_ids(routing: Routing, token_ids: NoTokenIds | TokenIds, real_T: Tensor) -> None:
    """Raise unless each row that is a token has an id that the routing can look up, if it does.

    real_T    bool [T], false for padding, whose ids may be anything

    Raises MissingTokenIds, ShapeMismatch or TokenIdOutOfRange.
    """
    if isinstance(token_ids, TokenIds) and token_ids.ids_T.shape != real_T.shape:
        raise ShapeMismatch(
            "token_ids", got=token_ids.ids_T.shape, expected=f"{tuple(real_T.shape)}"
        )
    by = routing.by if isinstance(routing, OnInputRouting) else routing
    if not isinstance(by, HashRouting):
        return
    match token_ids:
        case NoTokenIds():
            if real_T.any():
                raise MissingTokenIds(num_rows=int(real_T.sum()))
        case TokenIds(ids_T):
            check_token_ids(ids_T[real_T], vocabulary=by.vocabulary)


def check_token_ids(ids_T: Tensor, *, vocabulary: int) -> None:
    """Raise TokenIdOutOfRange unless each id has a row in a table of that many."""
    outside_T = (ids_T < 0) | (ids_T >= vocabulary)
    if outside_T.any():
        raise TokenIdOutOfRange(ids=unique_ints(ids_T[outside_T]), vocabulary=vocabulary)
