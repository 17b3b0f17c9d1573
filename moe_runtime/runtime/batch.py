"""What one rank brings to one step.

Axes    T rows   D model width   L layers   E experts to choose from
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moe_runtime.contracts.adapters import NO_ADAPTERS, AdapterIds, NoAdapters
from moe_runtime.contracts.step import Phase, Step, StepKind
from moe_runtime.contracts.tokens import NO_TOKEN_IDS, NoTokenIds, TokenIds

__all__ = ["Batch", "ByGate", "ByLogits"]


@dataclass(frozen=True, slots=True)
class ByGate:
    """Each layer's own gate routes."""


@dataclass(frozen=True, slots=True, eq=False)
class ByLogits:
    """Logits from outside route, for replayed traffic."""

    logits_LTE: Tensor
    """One row for each row of the batch, padding included."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of hidden states, how they are routed, and which of them are tokens."""

    x_TD: Tensor
    real_T: Tensor
    """bool [T], false for padding rows."""
    router: ByGate | ByLogits
    step: Step
    token_ids: NoTokenIds | TokenIds = NO_TOKEN_IDS
    adapters: NoAdapters | AdapterIds = NO_ADAPTERS

    @staticmethod
    def of(x_TD: Tensor, router: ByGate | ByLogits, step: Step) -> "Batch":
        """Return a batch without padding."""
        return Batch(x_TD, torch.ones(x_TD.shape[0], dtype=torch.bool), router, step)

    def at(self, home: torch.device) -> "Batch":
        """Return the same batch in a device's memory, copied there if it is elsewhere."""
        router, ids, adapters = self.router, self.token_ids, self.adapters
        return Batch(
            self.x_TD.to(home),
            self.real_T.to(home),
            ByLogits(router.logits_LTE.to(home)) if isinstance(router, ByLogits) else router,
            self.step,
            TokenIds(ids.ids_T.to(home)) if isinstance(ids, TokenIds) else ids,
            AdapterIds(adapters.ids_T.to(home)) if isinstance(adapters, AdapterIds) else adapters,
        )

    @staticmethod
    def dummy(
        width: int, *, phase: Phase = Phase.DECODE, dtype: torch.dtype = torch.float32
    ) -> "Batch":
        """Return what an idle rank brings: no rows, so that the group's collectives go on."""
        return Batch.of(torch.empty((0, width), dtype=dtype), ByGate(), Step(StepKind.DUMMY, phase))
