"""What a forward step is, told by each rank before it begins.

Axes    N ranks   H phases

A step is one forward of the whole group. Ranks differ in what they bring: one
prefills, one decodes, an idle one takes a dummy step. Whether the tokens that
arrive at a slot are load is decided by the rank that sent them, so every rank
must know every rank's `Step`.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from moe_runtime.contracts.errors import require_type

__all__ = ["Phase", "Step", "StepKind", "StepView"]


class StepKind(IntEnum):
    """Why a step runs. Only the tokens of real steps are load."""

    REAL = 0
    DUMMY = 1
    WARMUP = 2
    PROFILE = 3


class Phase(IntEnum):
    """What the tokens of a rank's step are; an index of axis H."""

    PREFILL = 0
    DECODE = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's part of one step. Raises ShapeMismatch for numbers in the place of its types."""

    kind: StepKind
    phase: Phase

    def __post_init__(self) -> None:
        require_type("kind", self.kind, (StepKind,), of="of moe_runtime")
        require_type("phase", self.phase, (Phase,), of="of moe_runtime")


@dataclass(frozen=True, slots=True, eq=False)
class StepView:
    """What every rank brings to this step; the same on every rank but for `rank`."""

    rank: int
    rows_N: tuple[int, ...]
    """Token rows of each rank, padding left out."""
    steps_N: tuple[Step, ...]
    marks_N: tuple[int, ...] = ()
    """Fingerprint of each rank's dispatch tables, where it was announced."""
    tokens_N: tuple[int, ...] = ()
    """Fingerprint of each rank's tokens, where those of a team are compared."""
    team: int = 1
    """Ranks that hold their tokens alike; the first of them brings them."""

    @property
    def own(self) -> Step:
        """This rank's part."""
        return self.steps_N[self.rank]

    @property
    def own_rows(self) -> int:
        """Token rows this rank brings."""
        return self.rows_N[self.rank]

    @property
    def first_row(self) -> int:
        """Number of the first token that this rank has, among those of all ranks."""
        return sum(self.rows_N[: self.rank - self.rank % self.team])

    def load_mask(self) -> Tensor:
        """Return int64 [H, N], 1 where a rank's tokens are load of that phase."""
        counted = torch.zeros((len(Phase), len(self.steps_N)), dtype=torch.int64)
        for rank, step in enumerate(self.steps_N):
            if step.kind is StepKind.REAL:
                counted[step.phase, rank] = 1
        return counted
