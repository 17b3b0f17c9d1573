"""The experts that routers chose, told to vLLM where a user asked for them.

vLLM hangs a function on each router of a model that is served with
`enable_return_routed_experts`, and its own routers call it. Ours do not run, so we call it.

Axes    T rows of the runner's batch, padding included   K experts per token
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.exchange.peers import Peers

__all__ = ["EngineRecorder", "Listening"]


class Listening(Protocol):
    """A router of vLLM."""

    capture_fn: Callable[[Tensor], None] | None


@dataclass(frozen=True, slots=True, eq=False)
class EngineRecorder:
    """Meets `Recorder` for one step; tells each layer's router if it listens."""

    routers: Sequence[Listening]
    real_T: Tensor
    """bool: which of this rank's own rows are tokens."""
    sharing: Peers
    sizes: Sequence[int]
    """Rows that each sharing rank has routed; one entry where it has routed all of them."""

    def record(self, layer: int, experts: LogicalIds) -> None:
        """Tell vLLM [T, K] as its own router would: all rows, with expert 0 for padding.

        Collective over the sharing ranks, if these listen and have parts of the rows.
        """
        listener = self.routers[layer].capture_fn
        if listener is None:
            return
        ids_TK = experts.ids_TK.new_zeros((self.real_T.shape[0], experts.ids_TK.shape[1]))
        ids_TK[self.real_T] = experts.ids_TK
        if len(self.sizes) > 1:
            ids_TK = self.sharing.all_gather(ids_TK, list(self.sizes))
        listener(ids_TK)
