"""Controllers that die, come back or do not know that they were followed; each by hand."""

from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import (
    Abort,
    Arm,
    CutOver,
    Hello,
    Nack,
    NackReason,
    RankPhase,
    Staged,
)
from eplb_service.protocol.wave_state import WavePhase
from tests.protocol.by_hand import ByHand, answers


def test_a_wave_settles_when_nothing_goes_wrong() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.arm_all()
    table.run_step()
    assert table.served() == epoch
    table.settle_words()
    assert table.recorded(epoch) is WavePhase.SETTLED
    assert table.lead.may_start


def test_a_controller_dead_between_record_and_arm_is_followed_by_one_that_arms() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.accept_all()
    table.stage_all()
    table.hand_on(Staged)
    table.perform_until_recorded(WavePhase.MAY_COMMIT)
    table.lead.is_alive = False
    assert not table.waiting(Arm)
    table.run_step()
    assert table.served() == 0

    table.new_controller()
    table.perform()
    table.hand_on(Arm)
    table.run_step()
    assert table.served() == epoch
    table.settle_words()
    assert table.recorded(epoch) is WavePhase.SETTLED


def test_a_controller_dead_before_the_record_is_followed_by_one_that_records_and_arms() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.accept_all()
    table.stage_all()
    table.hand_on(Staged)
    table.lead.is_alive = False
    assert table.recorded(epoch) is WavePhase.SPENT

    table.new_controller()
    table.settle_words()
    table.run_step()
    assert table.served() == epoch


def test_of_two_controllers_only_the_newer_is_heeded_by_store_and_ranks() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    old = table.lead
    stale_orders = table.lose(Order)
    new = table.new_controller()
    table.settle_words()
    assert table.phases() == {RankPhase.ACCEPTED}

    table.give(stale_orders[0])
    refused = [word.reason for word in answers(table, 0) if isinstance(word, Nack)]
    assert set(refused) == {NackReason.STALE}

    old.give_up("operator of the old one")
    old.perform()
    assert not old.is_alive
    assert new.is_alive
    assert table.recorded(epoch) is WavePhase.SPENT
    assert not table.waiting(Abort)


def test_the_old_controller_cannot_arm_what_the_new_one_aborted() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    old = table.lead
    table.accept_all()
    table.run_step()
    new = table.new_controller()
    new.give_up("operator of the new one")
    table.perform()
    late = table.lose(Abort)
    table.stage_all()
    table.hand_on(Staged)
    old.perform()
    assert not old.is_alive
    assert not table.waiting(Arm)
    assert table.recorded(epoch) is WavePhase.ABORTED

    for letter in late:
        table.give(letter)
    table.run_step()
    table.settle_words()
    assert table.served() == 0
    assert new.may_start


def test_hellos_of_an_older_incarnation_close_nothing() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.arm_all()
    table.greet()
    stale = table.lose(Hello)
    table.restart()
    stale += table.lose(Hello)
    table.restart()
    table.hand_on(Hello, 0)
    for letter in stale:
        table.give(letter)
    table.perform()
    assert table.recorded(epoch) is WavePhase.MAY_COMMIT
    assert not table.lead.may_start

    table.hand_on(Hello)
    table.perform()
    assert table.recorded(epoch) is WavePhase.ABORTED
    assert table.lead.may_start


def test_a_rank_dying_between_switch_and_word_leaves_no_contradiction() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.arm_all()
    table.run_step(dies_at=1)
    table.lose(CutOver)
    assert table.group.incarnation == 2
    assert table.served() == 0

    table.settle_words()
    assert table.recorded(epoch) is WavePhase.ABORTED
    again = table.begin_wave()
    assert again > epoch
    table.arm_all()
    table.run_step()
    assert table.served() == again


def test_a_cutover_that_one_word_told_is_settled_even_if_the_group_then_died() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.arm_all()
    table.run_step(dies_at=1)
    table.hand_on(CutOver, 0)
    table.perform()
    assert table.recorded(epoch) is WavePhase.COMMITTED
    table.settle_words()
    assert table.recorded(epoch) is WavePhase.SETTLED
    assert table.served() == 0
    assert table.lead.may_start
    assert table.lead.beliefs.common_epoch == 0


def test_a_new_incarnation_that_serves_the_open_wave_settles_it() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.arm_all()
    table.run_step()
    table.lose(CutOver)
    table.restart(offered=(epoch,) * 3)
    table.settle_words()
    assert table.recorded(epoch) is WavePhase.SETTLED
    assert table.served() == epoch


def test_an_order_for_an_older_incarnation_is_refused() -> None:
    table = ByHand()
    table.begin_wave()
    orders = table.lose(Order)
    table.restart()
    table.holes.pull(Hello, ())
    table.give(orders[0])
    [nack] = answers(table, 0)
    assert isinstance(nack, Nack)
    assert nack.reason is NackReason.STALE
    assert table.rank(0).state.held is None
