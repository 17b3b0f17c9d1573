"""One load window: what all ranks computed between two steps at which all of them cut a report.

Axes    L MoE layers   P slots   N ranks
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.ids import CountArray, Epoch, frozen
from eplb_service.domain.report import LoadReport, Phase
from eplb_service.load.group import Group

Cut = Mapping[tuple[int, Phase], LoadReport]
"""The reports of one step, by rank and phase."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadWindow:
    """Counts of comparable reports only; ranks that are missing are unknown, not zero."""

    epoch: Epoch
    phase: Phase | None
    """None where all phases are taken together."""
    first_step: int
    last_step: int
    """The window holds the steps from first_step up to, not including, last_step."""
    slot_tokens: CountArray
    """[L, P] tokens each slot computed; 0 in the slots of unknown ranks."""
    is_known: NDArray[np.bool_]
    """[N] whether each rank's reports enclose the window."""
    tokens: CountArray
    """[N] real tokens that each rank routed."""
    overflow_tokens: int
    step_seconds: float
    """Mean length of a step."""
    expert_seconds: float
    """Expert computation in a step on the slowest rank, all layers."""

    def __post_init__(self) -> None:
        for array in (self.slot_tokens, self.is_known, self.tokens):
            frozen(array)

    @property
    def num_steps(self) -> int:
        """Steps that the window encloses; 0 where there is no common span."""
        return self.last_step - self.first_step

    @property
    def coverage(self) -> float:
        """Share of ranks whose reports enclose the window, 0 to 1."""
        return float(self.is_known.mean())


def empty_window(group: Group, phase: Phase | None, *, heard: Sequence[int] = ()) -> LoadWindow:
    """Build the window of a group that has no two common cuts yet, but for some ranks."""
    is_known = np.zeros(group.num_ranks, dtype=np.bool_)
    is_known[list(heard)] = True
    return LoadWindow(
        epoch=group.epoch,
        phase=phase,
        first_step=0,
        last_step=0,
        slot_tokens=np.zeros(group.placement.phy2log.shape, dtype=np.int64),
        is_known=is_known,
        tokens=np.zeros(group.num_ranks, dtype=np.int64),
        overflow_tokens=0,
        step_seconds=0.0,
        expert_seconds=0.0,
    )


@dataclass(frozen=True, slots=True)
class Span:
    """Two cuts and the ranks that reported at both under one reset."""

    first_step: int
    last_step: int
    ranks: tuple[int, ...]


def enclose(
    group: Group, span: Span, cuts: Mapping[int, Cut], phases: Sequence[Phase]
) -> LoadWindow:
    """Sum what the span's ranks counted between its two cuts, in the phases named."""
    first, last = cuts[span.first_step], cuts[span.last_step]
    slot_tokens = np.zeros(group.placement.phy2log.shape, dtype=np.int64)
    tokens = np.zeros(group.num_ranks, dtype=np.int64)
    seconds = np.zeros((group.num_ranks, 2))
    overflow = 0
    for rank in span.ranks:
        told = [phase for phase in phases if (rank, phase) in last]
        for phase in told:
            before, after = first[rank, phase], last[rank, phase]
            slot_tokens[:, group.columns(rank)] += after.received - before.received
            tokens[rank] += after.steps.tokens - before.steps.tokens
        for phase in told[:1]:  # time and overflow are the rank's, told alike in every phase
            before, after = first[rank, phase].steps, last[rank, phase].steps
            overflow += after.overflow_tokens - before.overflow_tokens
            seconds[rank] = (
                after.step_seconds - before.step_seconds,
                after.expert_seconds - before.expert_seconds,
            )
    is_known = np.zeros(group.num_ranks, dtype=np.bool_)
    is_known[list(span.ranks)] = True
    per_step = seconds[is_known] / (span.last_step - span.first_step)
    return LoadWindow(
        epoch=group.epoch,
        phase=phases[0] if len(phases) == 1 else None,
        first_step=span.first_step,
        last_step=span.last_step,
        slot_tokens=slot_tokens // group.num_counters,
        is_known=is_known,
        tokens=tokens,
        overflow_tokens=overflow,
        step_seconds=float(per_step[:, 0].mean()),
        expert_seconds=float(per_step[:, 1].max()),
    )
