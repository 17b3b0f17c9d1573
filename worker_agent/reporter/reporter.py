"""Builds load reports out of cuts, on the agent's thread.

Axes    H phases   L MoE layers   S local slots   E experts   X sent entries
"""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from eplb_service.domain.ids import CountArray, Epoch, Incarnation
from eplb_service.domain.report import CountedUnder, LoadReport, Phase, SentCounts, StepCounts
from worker_agent.reporter.cuts import Cadence, Cut, Cutter

PHASES = (Phase.PREFILL, Phase.DECODE)
"""In the order of axis H."""
MAX_UNACKED = 8


class Reporter:
    """The reports that one rank owes the controller.

    Memory is bounded whatever the controller does: ordinary cuts are few and the newest
    win; of closing totals those of the last MAX_UNACKED epochs are kept until acked.
    """

    def __init__(self, cutter: Cutter, *, incarnation: Incarnation) -> None:
        self._cutter = cutter
        self._reset = int(incarnation)
        self._unacked: OrderedDict[Epoch, Cut] = OrderedDict()

    def set_cadence(self, cadence: Cadence) -> None:
        """Cut as the controller asks, from the next step that it divides on.

        Cuts of another cadence are forgotten: the controller would refuse their steps.
        """
        if cadence != self._cutter.cadence:
            self._cutter.cadence = cadence
            while self._cutter.take_cut() is not None:
                pass

    def acknowledge(self, epoch: Epoch) -> None:
        """The closing totals of an epoch arrived."""
        self._unacked.pop(epoch, None)

    def unsent(self) -> tuple[LoadReport, ...]:
        """Return new closing totals at once, and with every ordinary cut those not yet acked."""
        fresh = list(self._fresh_closings())
        reports = [report for cut in fresh for report in reports_of(cut, self._reset)]
        while (cut := self._cutter.take_cut()) is not None:
            repeated = [old for old in self._unacked.values() if old not in fresh]
            fresh.extend(repeated)
            for due in (*repeated, cut):
                reports.extend(reports_of(due, self._reset))
        return tuple(reports)

    def _fresh_closings(self) -> Iterator[Cut]:
        while (cut := self._cutter.take_closing()) is not None:
            self._unacked[cut.served.epoch] = cut
            while len(self._unacked) > MAX_UNACKED:
                self._unacked.popitem(last=False)
            yield cut


def reports_of(cut: Cut, reset: int) -> Iterator[LoadReport]:
    """Yield one report for each phase; its counters begin at the epoch's first step.

    reset    number of the first epoch's counting; every later epoch counts one higher
    """
    counters = cut.counters.since(cut.start.counters)
    steps = counters.steps
    for index, phase in enumerate(PHASES):
        yield LoadReport(
            under=CountedUnder(cut.served.epoch, cut.served.placement, cut.served.revision),
            phase=phase,
            step=cut.step,
            reset=reset + cut.start.number,
            is_closing=cut.is_closing,
            received=counters.received[index],
            sent_total=counters.sent[index].sum(axis=1),
            sent=sent_of(cut, counters.sent[index]),
            steps=StepCounts(
                real=steps.real,
                dummy=steps.dummy,
                warmup=steps.warmup,
                profile=steps.profile,
                tokens=int(counters.tokens[index]),
                padding_rows=counters.padding_rows,
                overflow_tokens=counters.overflow_tokens,
                step_seconds=cut.step_seconds - cut.start.step_seconds,
                expert_seconds=counters.expert_seconds,
            ),
        )


def sent_of(cut: Cut, sent: CountArray) -> SentCounts:
    """Return the sent counts of experts with more than one replica, if the cut tells them.

    sent    [L, E]
    """
    if cut.has_sent:
        layers, experts = np.nonzero(cut.placement.replica_count() > 1)
    else:
        layers = experts = np.zeros(0, dtype=np.int64)
    return SentCounts(
        layers=layers.astype(np.int32),
        experts=experts.astype(np.int32),
        tokens=sent[layers, experts],
    )
