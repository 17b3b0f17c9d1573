"""Who sent what: tokens of each source rank for the experts that have a choice of replicas.

Axes    L MoE layers   E logical experts   N ranks   X experts with several replicas
"""

from collections.abc import Sequence

import numpy as np

from eplb_service.domain.heat import BySource
from eplb_service.domain.ids import CountArray
from eplb_service.domain.report import LoadReport, Phase
from eplb_service.load.conservation import SentCut, encloses
from eplb_service.load.group import Group


def sent_between(
    first: SentCut, last: SentCut, group: Group, phases: Sequence[Phase]
) -> BySource | None:
    """What every rank sent between two cuts with sent counts; None unless both tell of all ranks.

    Only experts that every report of both cuts speaks of are counted, which are those with
    several replicas: X is at most L times the redundant slots, whatever ranks report.
    """
    if not encloses(first.cut, last.cut, tuple(last.cut)):
        return None
    is_told = (first.num_told == len(first.cut)) & (last.num_told == len(last.cut))
    is_told &= group.placement.replica_count() > 1
    layers, experts = np.nonzero(is_told)
    tokens = np.zeros((group.num_ranks, len(layers)), dtype=np.int64)
    routed = np.zeros(group.num_ranks, dtype=np.int64)
    for (rank, phase), report in last.cut.items():
        if phase in phases:
            before = first.cut[rank, phase]
            tokens[rank] += _counts(report, is_told) - _counts(before, is_told)
            routed[rank] += report.steps.tokens - before.steps.tokens
    return BySource(
        layers=layers.astype(np.int32),
        experts=experts.astype(np.int32),
        tokens=tokens,
        routed=routed,
        num_steps=last.step - first.step,
    )


def _counts(
    report: LoadReport, is_told: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
) -> CountArray:
    """[X] the report's counts of the told experts, by layer and expert."""
    dense = np.zeros(is_told.shape, dtype=np.int64)
    dense[report.sent.layers, report.sent.experts] = report.sent.tokens
    return dense[is_told]
