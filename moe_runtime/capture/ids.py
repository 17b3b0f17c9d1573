"""Whether captured ids can be true, and the integers that hold them.

Axes    T tokens   L layers   K experts per token   E experts to choose from
"""

import torch
from torch import Tensor

from moe_runtime.contracts.exchange_errors import CaptureUnavailable

__all__ = ["id_dtype", "narrow", "refuse_impossible"]


def id_dtype(num_experts: int) -> torch.dtype:
    """Return the narrowest integers that hold every id.

    >>> id_dtype(256), id_dtype(257), id_dtype(2**15 + 1)
    (torch.uint8, torch.int16, torch.int32)
    """
    for dtype in (torch.uint8, torch.int16):
        if num_experts - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int32


def narrow(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the ids in other integers; raises CaptureUnavailable where one does not fit."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        raise CaptureUnavailable(f"ids were asked for as {dtype}, expected integers")
    fits = torch.iinfo(dtype)
    if ids.numel() and (int(ids.min()) < fits.min or int(ids.max()) > fits.max):
        raise CaptureUnavailable(
            f"ids from {int(ids.min())} to {int(ids.max())} do not fit {dtype}, which ends at "
            f"{fits.max}"
        )
    return ids.to(dtype)


def refuse_impossible(ids_TLK: Tensor, *, num_experts: int) -> Tensor:
    """Return captured ids as int64; raises CaptureUnavailable if no router could have chosen them.

    num_experts    experts to choose from, zero experts included

    A buffer that was never written is all zeros, and no token chooses an expert twice.
    """
    if ids_TLK.is_floating_point() or ids_TLK.is_complex() or ids_TLK.dtype is torch.bool:
        raise CaptureUnavailable(f"the ids are {ids_TLK.dtype}, expected integers")
    ids_TLK = ids_TLK.long()
    if bool(((ids_TLK < 0) | (ids_TLK >= num_experts)).any()):
        raise CaptureUnavailable(f"some ids are not experts, expected 0 to {num_experts - 1}")
    sorted_TLK = ids_TLK.sort(dim=-1).values
    repeats_TL = (sorted_TLK[..., 1:] == sorted_TLK[..., :-1]).any(dim=-1)
    if bool(repeats_TL.any()):
        num_tokens = int(repeats_TL.reshape(ids_TLK.shape[0], -1).any(dim=1).sum())
        raise CaptureUnavailable(
            f"{num_tokens} of {ids_TLK.shape[0]} tokens have an expert twice, which cannot be"
        )
    return ids_TLK
