"""Who sent what: tokens of each source rank for the experts that have a choice of replicas.

Axes    N ranks   X experts with several replicas
"""

from collections.abc import Sequence

import numpy as np

from eplb_service.domain.heat import BySource
from eplb_service.domain.report import Phase
from eplb_service.load.conservation import encloses
from eplb_service.load.group import Group
from eplb_service.load.told import SentCut, common_to


def sent_between(
    first: SentCut, last: SentCut, group: Group, phases: Sequence[Phase]
) -> BySource | None:
    """What every rank sent between two cuts with sent counts; None unless both tell of all ranks.

    Only experts that every report of both cuts speaks of are counted, which are those with
    several replicas: X is at most L times the redundant slots, whatever ranks report.
    """
    if not encloses(first.cut, last.cut, tuple(last.cut)):
        return None
    numbers, before, after = common_to(first, last)
    is_free = group.placement.replica_count().reshape(-1)[numbers] > 1
    numbers, before, after = numbers[is_free], before[is_free], after[is_free]
    tokens = np.zeros((group.num_ranks, numbers.size), dtype=np.int64)
    routed = np.zeros(group.num_ranks, dtype=np.int64)
    for (rank, phase), report in last.cut.items():
        if phase in phases:
            earlier = first.cut[rank, phase]
            tokens[rank] += last.tokens[rank, phase][after] - first.tokens[rank, phase][before]
            routed[rank] += report.steps.tokens - earlier.steps.tokens
    layers, experts = np.divmod(numbers, group.placement.num_experts)
    return BySource(
        layers=layers.astype(np.int32),
        experts=experts.astype(np.int32),
        tokens=tokens,
        routed=routed,
        num_steps=last.step - first.step,
    )
