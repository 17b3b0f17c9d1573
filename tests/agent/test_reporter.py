"""Reports: cut at the same steps, closed at a cutover, repeated until acked, bounded."""

from eplb_service.domain.ids import Epoch
from eplb_service.domain.report import LoadReport, Phase
from tests.agent.fakes import INCARNATION, NEW, OLD, FakeEngine, served_name
from worker_agent.reporter.cuts import Cadence, Cutter
from worker_agent.reporter.reporter import Reporter


class Rig:
    """A reporter beside a fake engine; ten tokens to each slot in every step."""

    def __init__(self) -> None:
        self.engine, self.num_rings = FakeEngine(), 0
        self.cutter = Cutter(self.engine, Cadence(10, 2), self._ring)
        self.reporter = Reporter(self.cutter, incarnation=INCARNATION)
        self.step = 0
        self.served, self.placement = served_name(OLD), OLD

    def _ring(self) -> None:
        self.num_rings += 1

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.cutter.at_step(self.step, self.served, self.placement)
            self.step += 1
            self.engine.num_steps += 1

    def cut_over(self, epoch: int) -> None:
        self.cutter.closing(self.step, self.served, self.placement)
        self.placement = NEW if self.placement is OLD else OLD
        self.served = served_name(self.placement, epoch)

    def decode(self) -> list[LoadReport]:
        return [r for r in self.reporter.unsent() if r.phase is Phase.DECODE]


def test_reports_are_cut_at_multiples_of_the_cadence_and_count_the_steps_before() -> None:
    rig = Rig()
    rig.steps(21)
    reports = rig.decode()
    assert [report.step for report in reports] == [0, 10, 20]
    assert [int(report.received[0, 0]) for report in reports] == [0, 100, 200]
    assert [int(report.sent_total[0]) for report in reports] == [0, 300, 600]
    assert [report.steps.tokens for report in reports] == [0, 300, 600]
    assert rig.num_rings == 3


def test_each_phase_has_a_report_of_its_own() -> None:
    rig = Rig()
    rig.steps(1)
    assert [report.phase for report in rig.reporter.unsent()] == [Phase.PREFILL, Phase.DECODE]


def test_sent_counts_come_every_few_reports_and_for_replicated_experts_alone() -> None:
    rig = Rig()
    rig.steps(21)
    sent = [report.sent for report in rig.decode()]
    assert [len(one.tokens) for one in sent] == [1, 0, 1]
    assert (sent[2].layers.tolist(), sent[2].experts.tolist()) == ([0], [0])
    assert sent[2].tokens.tolist() == [200]


def test_the_closing_totals_of_an_epoch_are_repeated_until_they_are_acknowledged() -> None:
    rig = Rig()
    rig.steps(14)
    rig.decode()
    rig.cut_over(5)
    (closing,) = rig.decode()
    assert (closing.epoch, closing.step, closing.is_closing) == (0, 14, True)
    assert int(closing.received[0, 0]) == 140
    assert closing.placement == OLD.digest()
    rig.steps(7)
    again, regular = rig.decode()
    assert (again.epoch, again.step, again.is_closing) == (0, 14, True)
    assert (regular.epoch, regular.step, regular.is_closing) == (5, 20, False)
    rig.reporter.acknowledge(Epoch(0))
    rig.steps(10)
    assert [report.epoch for report in rig.decode()] == [5]


def test_an_epochs_counts_begin_at_its_cutover_under_a_higher_reset() -> None:
    """A slot that is declared empty now counted tokens of the expert it held before."""
    rig = Rig()
    rig.steps(10)
    rig.cut_over(5)
    rig.steps(11)
    first, *_, last = rig.decode()
    assert (last.step, int(last.received[0, 0]), last.steps.tokens) == (20, 100, 300)
    assert (last.steps.real, last.steps.padding_rows) == (10, 10)
    assert last.reset == first.reset + 1 == INCARNATION + 1


def test_memory_is_bounded_while_the_controller_is_away_and_the_newest_is_kept() -> None:
    rig = Rig()
    for epoch in range(1, 101):
        rig.steps(50)
        rig.cut_over(epoch)
    rig.steps(1)
    reports = rig.decode()
    closings = [report.epoch for report in reports if report.is_closing]
    assert closings == list(range(92, 100))
    assert len(reports) <= 8 + 4
    assert reports[-1].step == 5000


def test_a_new_cadence_holds_from_the_next_step_that_it_divides_and_older_cuts_are_forgotten() -> (
    None
):
    rig = Rig()
    rig.steps(5)
    rig.reporter.set_cadence(Cadence(4, 1))
    rig.steps(8)
    assert [report.step for report in rig.decode()] == [8, 12]
