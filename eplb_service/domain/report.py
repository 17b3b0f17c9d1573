"""What ranks tell about load.

Axes    L MoE layers   S the rank's local slots   X sent entries
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from eplb_service.domain.ids import CountArray, Digest, Epoch, IntArray, Revision, frozen


class Phase(StrEnum):
    """Kind of work that a step did."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Cumulative steps by kind and rows that are no load, since the counters' reset."""

    real: int
    dummy: int
    warmup: int
    profile: int
    tokens: int
    """Real tokens this rank routed in the report's phase, per layer the same."""
    padding_rows: int
    overflow_tokens: int
    """Tokens beyond a receive capacity; demand is counted, the overflow is told."""
    step_seconds: float
    expert_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class SentCounts:
    """Cumulative tokens this rank sent, for the experts that have more than one replica."""

    layers: IntArray
    """[X]"""
    experts: IntArray
    """[X]"""
    tokens: CountArray
    """[X]"""

    def __post_init__(self) -> None:
        for array in (self.layers, self.experts, self.tokens):
            frozen(array)


_NOBODY = np.zeros(0, dtype=np.int32)
NO_SENT = SentCounts(_NOBODY, _NOBODY, np.zeros(0, dtype=np.int64))
"""What a report without sent counts holds."""


@dataclass(frozen=True, slots=True)
class CountedUnder:
    """What was served while tokens were counted."""

    epoch: Epoch
    placement: Digest
    revision: Revision


@dataclass(frozen=True, slots=True, eq=False)
class LoadReport:
    """One rank's cumulative counters at one step, for one phase and one epoch.

    All ranks cut their reports at the same steps, so that any two reports of all
    ranks enclose the same work. Counters only grow until `reset` does, so a lost
    report loses nothing.
    """

    under: CountedUnder
    phase: Phase
    step: int
    """The counters hold all steps before this one."""
    reset: int
    is_closing: bool
    """The closing totals of an epoch, repeated until acknowledged."""
    received: CountArray
    """[L, S] tokens each local slot computed."""
    sent_total: CountArray
    """[L] token copies this rank sent, to any expert; tokens x top_k when all is well."""
    sent: SentCounts
    """Empty in most reports: it comes at a slower cadence."""

    steps: StepCounts

    @property
    def epoch(self) -> Epoch:
        """Epoch that was served."""
        return self.under.epoch

    @property
    def placement(self) -> Digest:
        """Fingerprint of the placement that was served."""
        return self.under.placement

    def __post_init__(self) -> None:
        frozen(self.received)
        frozen(self.sent_total)
