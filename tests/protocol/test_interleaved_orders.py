"""Orders that come late, twice, or to a rank that moved on; rounds and aborts; each by hand."""

from dataclasses import replace

from eplb_service.controller.statuses import fold
from eplb_service.domain.ids import Epoch
from eplb_service.domain.wave import Order
from eplb_service.protocol.agreement import NO_WAVE
from eplb_service.protocol.messages import (
    Abort,
    Accepted,
    Dropped,
    DropReason,
    Nack,
    NackReason,
    RankPhase,
    Staged,
    WaveName,
)
from eplb_service.protocol.rank_state import Offer, Withdraw, ballot
from eplb_service.protocol.wave_state import Heard, WavePhase
from tests.protocol.by_hand import ByHand, answers, order_in, wave_in

SEED_OF_THREE_ROUNDS = 3


def test_a_late_ack_of_an_aborted_epoch_says_nothing_about_its_successor() -> None:
    table = ByHand()
    first = table.begin_wave()
    wave = wave_in(table.hand_on(Order)[0])
    late = table.lose(Accepted, 1)[0]
    table.lead.give_up("operator")
    table.settle_words()
    assert table.recorded(first) is WavePhase.ABORTED

    second = table.begin_wave()
    table.give(late)
    table.give(replace(late, word=Staged(wave)))
    assert table.lead.wave is not None
    assert table.lead.wave.wave.epoch == second
    assert table.lead.wave.heard == (Heard.NOTHING,) * 3


def test_a_dropped_order_delivered_again_is_answered_dropped() -> None:
    table = ByHand()
    table.begin_wave()
    orders = table.hand_on(Order)
    table.lead.give_up("operator")
    table.settle_words()

    table.give(orders[0])
    assert table.rank(0).state.held is None
    assert answers(table, 0) == [Dropped(wave_in(orders[0]), 0, DropReason.BELOW_MARK)]


def test_an_order_never_seen_that_was_aborted_is_answered_dropped_and_cannot_come_later() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    late = table.lose(Order, 2)[0]
    table.hand_on(Order)
    table.lead.give_up("operator")
    table.settle_words()
    assert table.rank(2).state.high_mark == epoch

    table.give(late)
    assert table.rank(2).state.held is None


def test_an_order_repeated_at_a_rank_that_has_withdrawn_it_is_answered_dropped() -> None:
    table = ByHand()
    table.begin_wave()
    orders = table.hand_on(Order)
    table.run_step()
    assert table.phases() == {RankPhase.MOVING}
    wave = wave_in(orders[0])
    table.rank(1).handle(Withdraw(wave, DropReason.TRANSFER_FAILED))
    table.holes.pull(Accepted, ())

    table.give(next(letter for letter in orders if letter.rank == 1))
    assert answers(table, 1) == [Dropped(wave, 0, DropReason.TRANSFER_FAILED)]
    assert ballot(table.rank(1).state, 1).accepted == NO_WAVE

    table.run_step()
    assert table.phases() == {RankPhase.DRAINING}
    table.finish()
    assert table.phases() == {RankPhase.SERVING}
    assert table.served() == 0


def test_the_same_number_under_another_expiry_is_a_conflict() -> None:
    table = ByHand()
    table.begin_wave()
    orders = table.hand_on(Order, 0)
    held = table.rank(0).state.held
    table.holes.pull(Accepted, ())

    other = replace(order_in(orders[0]), expires_at_step=7)
    table.give(replace(orders[0], word=other))
    assert table.rank(0).state.held is held
    [nack] = answers(table, 0)
    assert isinstance(nack, Nack)
    assert nack.reason is NackReason.CONFLICT
    assert f"digest {wave_in(orders[0]).digest:016x}" in nack.text


def test_a_number_below_the_one_that_is_moving_is_answered_busy_and_may_come_again() -> None:
    table = ByHand()
    table.begin_wave()
    order = order_in(table.hand_on(Order)[0])
    table.run_step()
    table.holes.pull(Accepted, ())
    later = replace(order, epoch=Epoch(order.epoch + 1))
    table.rank(0).handle(Offer(later, None))
    [nack] = answers(table, 0)
    assert isinstance(nack, Nack)
    assert nack.reason is NackReason.BUSY
    assert table.rank(0).state.high_mark == 0


def test_a_higher_number_supersedes_an_order_that_does_not_move_yet() -> None:
    table = ByHand()
    table.begin_wave()
    order = order_in(table.hand_on(Order, 0)[0])
    table.holes.pull(Accepted, ())
    later = replace(order, epoch=Epoch(order.epoch + 1))
    table.rank(0).handle(Offer(later, None))
    first, second = (WaveName(o.epoch, o.digest) for o in (order, later))
    assert answers(table, 0) == [Dropped(first, 0, DropReason.SUPERSEDED), Accepted(second)]


def test_no_round_begins_while_a_peer_has_not_finished_the_last() -> None:
    table = ByHand(seed=SEED_OF_THREE_ROUNDS)
    table.begin_wave()
    assert order_in(table.waiting(Order)[0]).content.num_rounds > 1
    table.accept_all()
    table.run_step()
    table.finish(0, 1)
    for _ in range(3):
        table.run_step()
        begun = [rank.state.held.rounds_begun for rank in table.group.ranks if rank.state.held]
        assert begun == [1, 1, 1]
    table.finish(2)
    table.run_step()
    begun = [rank.state.held.rounds_begun for rank in table.group.ranks if rank.state.held]
    assert begun == [2, 2, 2]


def test_one_rank_that_never_stages_drops_the_wave_for_all() -> None:
    table = ByHand()
    epoch = table.begin_wave(num_steps=6)
    table.accept_all()
    table.run_step()
    table.finish(0, 1)
    for _ in range(6):
        table.run_step()
    assert table.phases() <= {RankPhase.SERVING, RankPhase.DRAINING}
    table.finish()
    table.settle_words()
    assert table.served() == 0
    assert table.recorded(epoch) is WavePhase.ABORTED


def test_a_rank_says_when_it_has_drained_for_a_controller_that_greeted_it_before() -> None:
    """Until then Hello told DRAINING, and no other word would ever take that back."""
    table = ByHand()
    table.begin_wave()
    table.accept_all()
    table.run_step()
    table.finish(0, 1)
    table.lead.give_up("told to end")
    table.perform()
    table.hand_on(Abort)
    table.run_step()
    table.settle_words()
    held = table.rank(2).state.held
    assert held is not None
    assert held.phase is RankPhase.DRAINING
    hello = table.rank(2).hello(is_idle=False)
    assert hello.status.phase is RankPhase.DRAINING

    table.finish(2)
    assert table.rank(2).state.held is None
    [over] = answers(table, 2)
    assert isinstance(over, Dropped)
    after = fold(hello.status, over, None)
    assert (after.phase, after.held) == (RankPhase.SERVING, None)


def test_a_rank_silent_through_an_abort_keeps_the_next_wave_waiting() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.hand_on(Order)
    table.hand_on(Accepted)
    table.lead.give_up("operator")
    table.perform()
    table.lose(Abort, 2)
    table.settle_words()
    assert table.recorded(epoch) is WavePhase.ABORTED
    assert not table.lead.may_start
    table.run_step()
    assert table.rank(2).state.held is not None

    table.lead.nudge()
    table.settle_words()
    assert table.rank(2).state.held is None
    assert table.lead.may_start
