"""Nothing is lost on the way: what all ranks sent between two cuts is what all slots received.

Axes    L MoE layers   P slots
"""

from collections.abc import Iterable, Sequence

import numpy as np

from eplb_service.domain.ids import CountArray
from eplb_service.domain.report import Phase
from eplb_service.load.group import Group
from eplb_service.load.window import Cut


def received_between(first: Cut, last: Cut, group: Group) -> CountArray:
    """[L, P] tokens that every slot computed between two cuts of all ranks."""
    slots = np.zeros(group.placement.phy2log.shape, dtype=np.int64)
    for (rank, phase), report in last.items():
        slots[:, group.columns(rank)] += report.received - first[rank, phase].received
    return slots


def lost_in_layers(first: Cut, last: Cut, group: Group) -> tuple[str, ...]:
    """Say, by layer and ranks, where tokens were lost or made up between two cuts of all ranks.

    Per layer, token copies sent over all ranks must equal tokens received over all
    routed slots; and ranks that count the same tokens must count as many.
    """
    slots = received_between(first, last, group)
    routed = np.where(group.placement.routed(), slots, 0).sum(axis=1)
    sent = sum(
        (report.sent_total - first[key].sent_total for key, report in last.items()),
        np.zeros(len(routed), dtype=np.int64),
    )
    everyone = f"ranks 0 to {group.num_ranks - 1}"
    lost = np.flatnonzero(sent != routed * group.num_senders)
    found = [
        f"layer {layer}: {everyone} sent {sent[layer]} token copies and received "
        f"{routed[layer] * group.num_senders}"
        for layer in lost.tolist()
    ]
    return (*found, *_disagreements(slots, group))


def _disagreements(slots: CountArray, group: Group) -> Sequence[str]:
    return [
        f"layer {layer} slot {slot}: {slots[layer, slot]} tokens over {group.num_counters} ranks "
        "that count the same"
        for layer, slot in np.argwhere(slots % group.num_counters != 0).tolist()
    ]


def is_complete(cut: Cut, group: Group, seen: Sequence[tuple[int, Phase]]) -> bool:
    """Whether a cut has a report of every rank, in every phase that the rank reports."""
    return len(cut) == len(seen) and len({rank for rank, _ in cut}) == group.num_ranks


def encloses(first: Cut, last: Cut, keys: Iterable[tuple[int, Phase]]) -> bool:
    """Whether both cuts have a report of each of these, counted from the same start."""
    pairs = ((first.get(key), last.get(key)) for key in keys)
    return all(a is not None and b is not None and a.reset == b.reset for a, b in pairs)
