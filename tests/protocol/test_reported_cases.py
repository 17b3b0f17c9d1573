"""What users of other systems reported, at the level of the machines."""

from dataclasses import replace

from eplb_service.domain.ids import Epoch
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import (
    Arm,
    CutOver,
    Nack,
    NackReason,
)
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.network import Letter
from tests.protocol.by_hand import ByHand, answers, order_in, wave_in


def test_case_f18_a_peer_that_dies_after_it_accepted_leaves_the_old_map_served() -> None:
    table = ByHand()
    epoch = table.begin_wave()
    table.accept_all()
    table.restart()
    table.settle_words()
    assert table.recorded(epoch) is WavePhase.ABORTED
    assert table.lead.wave is not None
    assert table.lead.wave.reason == "its rank group restarted"
    assert table.served() == 0
    assert all(rank.is_clean() for rank in table.group.ranks)


def test_case_f19_a_lost_ack_of_a_cutover_is_asked_for_and_repeating_is_harmless() -> None:
    table = ByHand(num_ranks=4)
    epoch = table.begin_wave()
    table.arm_all()
    table.run_step()
    table.lose(CutOver, 3)
    table.hand_on(CutOver)
    table.perform()
    assert table.recorded(epoch) is WavePhase.COMMITTED

    table.lead.nudge()
    table.perform()
    [arm] = table.hand_on(Arm)
    assert arm.rank == 3
    table.hand_on(CutOver, 3)
    table.perform()
    assert table.recorded(epoch) is WavePhase.SETTLED

    table.give(arm)
    table.run_step()
    assert table.served() == epoch


def serve_twelve() -> tuple[ByHand, Letter]:
    """Cut over twelve times; rank 0's last order comes along."""
    table, orders = ByHand(), list[Letter]()
    for _ in range(12):
        table.begin_wave()
        orders = table.waiting(Order, 0)
        table.arm_all()
        table.run_step()
        table.settle_words()
    return table, orders[0]


def test_case_f20_stale_conflicting_and_repeated_numbers_at_a_rank_that_serves_twelve() -> None:
    table, letter = serve_twelve()
    rank, twelve = table.rank(0), order_in(letter)
    assert table.served() == twelve.epoch == 12
    before = rank.state

    def answer_to(order: Order) -> object:
        rank.receive(order)
        [said] = answers(table, 0)
        table.holes.letters.clear()
        return said

    stale = answer_to(replace(twelve, epoch=Epoch(11)))
    assert isinstance(stale, Nack)
    assert stale.reason is NackReason.STALE
    conflict = answer_to(replace(twelve, expires_at_step=7))
    assert isinstance(conflict, Nack)
    assert conflict.reason is NackReason.CONFLICT
    again = answer_to(twelve)
    assert isinstance(again, CutOver)
    assert again.wave == wave_in(letter)
    assert (rank.state.served, rank.state.held) == (before.served, None)
