"""Shares, halts and idle groups in the orders that broke earlier designs; each by hand."""

from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import (
    Halted,
    Idle,
    Nack,
    NackReason,
    NewShares,
    RankPhase,
    Resume,
    SharesApplied,
)
from eplb_service.protocol.wave_state import WavePhase
from tests.protocol.by_hand import ByHand


def test_a_share_revision_that_arrives_after_a_cutover_is_not_applied() -> None:
    for ownership in Ownership:
        table = ByHand(ownership=ownership)
        epoch = table.begin_wave()
        table.accept_all()
        assert table.start_shares(table.lead)
        late = table.lose(NewShares)
        table.stage_all()
        table.settle_words()
        table.run_step()
        assert table.served() == epoch
        for letter in late:
            table.give(letter)
        table.run_step()
        assert {rank.state.served.revision for rank in table.group.ranks} == {0}


def test_replicated_shares_pending_at_a_cutover_are_dropped_by_it() -> None:
    table = ByHand(ownership=Ownership.REPLICATED)
    epoch = table.begin_wave()
    table.arm_all()
    assert table.start_shares(table.lead)
    table.hand_on(NewShares, 0, 1)
    table.run_step()
    table.hand_on(NewShares, 2)
    table.run_step()
    assert table.served() == epoch
    assert {rank.state.served.revision for rank in table.group.ranks} == {0}


def test_of_two_share_revisions_with_one_number_all_ranks_come_to_use_the_same() -> None:
    table = ByHand(ownership=Ownership.REPLICATED)
    old = table.lead
    assert table.start_shares(old)
    from_old = table.lose(NewShares)
    new = table.new_controller()
    assert table.start_shares(new, again=True)
    from_new = table.lose(NewShares)
    assert old.shares is not None
    assert new.shares is not None
    assert old.shares.name.revision == new.shares.name.revision
    assert old.shares.name != new.shares.name

    table.give(from_old[0])
    table.give(from_new[1])
    table.give(from_new[2])
    table.run_step()
    assert not table.waiting(SharesApplied)
    table.give(from_new[0])
    table.give(from_old[1])
    table.run_step()
    assert {rank.state.served for rank in table.group.ranks} == {new.shares.name}


def test_replicated_shares_wait_for_the_last_rank_and_own_ones_do_not() -> None:
    for ownership, num_applied in ((Ownership.REPLICATED, 0), (Ownership.OWN, 2)):
        table = ByHand(ownership=ownership)
        assert table.start_shares(table.lead)
        table.hand_on(NewShares, 0, 1)
        table.run_step()
        assert len(table.waiting(SharesApplied)) == num_applied


def test_a_halt_while_armed_beats_the_cutover() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.arm_all()
    table.raise_halt(1)
    table.run_step()
    assert table.served() == 0
    assert table.phases() == {RankPhase.SERVING}
    table.settle_words()
    assert table.recorded(epoch) is WavePhase.ABORTED
    assert not table.lead.may_start


def test_a_duplicate_resume_does_not_end_a_later_halt() -> None:
    table = ByHand()
    table.raise_halt(0)
    table.run_step()
    table.hand_on(Halted)
    table.lead.resume()
    resumes = table.hand_on(Resume)
    for rank in range(3):
        table.group.audit(rank, is_clean=True)
    table.run_step()
    assert not table.rank(0).state.halt.status.is_active

    table.raise_halt(2)
    table.run_step()
    for letter in resumes:
        table.give(letter)
    assert not [rank for rank in table.group.ranks if rank.audits]
    table.run_step()
    assert {rank.state.halt.status.number for rank in table.group.ranks} == {2}
    assert all(rank.state.halt.status.is_active for rank in table.group.ranks)


def test_a_halt_ends_only_when_every_rank_has_audited_clean() -> None:
    table = ByHand()
    table.raise_halt(0)
    table.run_step()
    table.hand_on(Halted)
    table.lead.resume()
    table.hand_on(Resume)
    table.group.audit(0, is_clean=True)
    table.group.audit(1, is_clean=True)
    table.run_step()
    assert table.rank(0).state.halt.status.is_active
    table.group.audit(2, is_clean=False)
    table.run_step()
    assert table.rank(0).state.halt.status.number == 2
    assert table.rank(0).state.halt.status.is_active


def test_a_halt_refuses_orders_and_shares_until_it_ends() -> None:
    table = ByHand()
    table.begin_wave()
    assert table.start_shares(table.lead)
    table.raise_halt(0)
    table.run_step()
    table.holes.pull(Halted, ())
    table.hand_on(Order)
    table.hand_on(NewShares)
    refused = [letter.word for letter in table.waiting(Nack)]
    assert [word.reason for word in refused if isinstance(word, Nack)] == [NackReason.HALTED] * 3
    assert {rank.state.served.revision for rank in table.group.ranks} == {0}


def test_an_idle_group_stops_the_deadline_and_goes_on_where_it_was() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.lead.desk.be_patient(3)
    table.accept_all()
    for rank in range(3):
        table.rank(rank).say(Idle(is_idle=True, step=0))
    table.hand_on(Idle)
    for _ in range(10):
        table.lead.nudge()
        table.settle_words()
    assert table.recorded(epoch) is WavePhase.SPENT
    assert table.phases() == {RankPhase.ACCEPTED}

    for rank in range(3):
        table.rank(rank).say(Idle(is_idle=False, step=0))
    table.settle_words()
    table.stage_all()
    table.settle_words()
    table.run_step()
    assert table.served() == epoch


def test_an_audit_that_finds_a_slot_wrong_counts_also_after_the_halt_has_ended() -> None:
    """Asked for twice: the first passed and ended the halt, the second found what broke since."""
    table = ByHand()
    table.raise_halt(1)
    table.run_step()
    table.settle_words()
    table.lead.resume()
    resumes = table.hand_on(Resume)
    table.give(resumes[0])
    for rank in range(3):
        table.group.audit(rank, is_clean=True)
    table.run_step()
    assert not table.rank(0).state.halt.status.is_active
    table.group.audit(resumes[0].rank, is_clean=False)
    table.run_step()
    halts = [rank.state.halt.status for rank in table.group.ranks]
    assert [(halt.number, halt.is_active) for halt in halts] == [(2, True)] * 3
    assert halts[resumes[0].rank].reason == "a slot differs"
