"""Whether a batch fits the model and is in the device's memory, and a table what slots hold.

Axes    E experts   J rows of a table   S local slots
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.contracts.adapters import AdapterIds
from moe_runtime.contracts.errors import BadTable, NoGradients, ShapeMismatch
from moe_runtime.contracts.npu_errors import WrongMemory
from moe_runtime.contracts.tokens import TokenIds
from moe_runtime.formats.capabilities import DTYPES
from moe_runtime.routing.checks import check_batch_ids
from moe_runtime.runtime.batch import Batch, ByGate, ByLogits
from moe_runtime.runtime.model import StackShape

__all__ = ["check_batch", "check_memory", "check_own"]


def check_memory(batch: Batch, home: torch.device) -> None:
    """Raise WrongMemory unless a batch is in the memory of the device that computes it."""
    parts = {"x_TD": batch.x_TD, "real_T": batch.real_T}
    if isinstance(batch.router, ByLogits):
        parts["logits_LTE"] = batch.router.logits_LTE
    if isinstance(batch.token_ids, TokenIds):
        parts["token_ids"] = batch.token_ids.ids_T
    if isinstance(batch.adapters, AdapterIds):
        parts["adapters"] = batch.adapters.ids_T
    for what, tensor in parts.items():
        if tensor.device != home:
            raise WrongMemory(what, got=str(tensor.device), expected=str(home))


def check_batch(shape: StackShape, batch: Batch) -> None:
    """Raise ShapeMismatch or NoGradients unless what a rank brings to a step fits the model.

    Whole numbers are refused: they are rows of a quantised layer, whose scale is not here, and a
    router that reads them chooses by noise.
    """
    x = tuple(batch.x_TD.shape)
    _check_floats("x_TD", batch.x_TD)
    if len(x) != 2 or x[1] != shape.width:
        raise ShapeMismatch("x_TD", got=x, expected=f"(T, {shape.width})")
    if batch.real_T.shape != x[:1] or batch.real_T.dtype != torch.bool:
        raise ShapeMismatch("real_T", got=batch.real_T.shape, expected=f"bool ({x[0]},)")
    match batch.router:
        case ByGate():
            pass
        case ByLogits(logits_LTE):
            _check_floats("logits_LTE", logits_LTE)
            expected = (shape.num_layers, x[0], shape.num_candidates)
            if logits_LTE.shape != expected:
                raise ShapeMismatch("logits_LTE", got=logits_LTE.shape, expected=f"{expected}")
    check_batch_ids(shape.selector, batch.token_ids, batch.real_T)


def _check_floats(what: str, given: Tensor) -> None:
    if given.layout is not torch.strided:
        raise ShapeMismatch(f"{what} of {given.layout}", got=given.shape, expected="not sparse")
    if given.dtype not in DTYPES:
        raise ShapeMismatch(
            f"{what} of {given.dtype}", got=given.shape, expected=f"one of {[*DTYPES]}"
        )
    if given.requires_grad and torch.is_grad_enabled():
        raise NoGradients(what)


def check_own(
    layer: int,
    table_EJ: npt.NDArray[np.int64],
    held_S: npt.NDArray[np.int64],
    *,
    base: int,
    rank: int,
    first: int = 0,
) -> None:
    """Raise BadTable if a table names one of this rank's slots for an expert it does not hold.

    base     this rank's first slot
    first    the expert that the table begins with
    """
    local = table_EJ - base
    places, rows = np.nonzero((local >= 0) & (local < len(held_S)))
    experts, holds = places + first, held_S[local[places, rows]]
    if wrong := sorted(set(experts[holds != experts].tolist())):
        raise BadTable(
            layer=layer,
            reason=f"experts {wrong} are sent to slots of rank {rank} that do not hold them",
        )
