"""The step side: words in, agreements, effects, words out, and nothing that waits."""

import threading
import time

import pytest

from eplb_service.domain.ids import Digest, Epoch, Generation, Revision
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.domain.shares import Ownership, ShareName, Shares, even_shares, table_digest
from eplb_service.protocol.messages import (
    Accepted,
    Arm,
    Armed,
    CutOver,
    NackReason,
    NewShares,
    RankPhase,
    Resume,
    SharesApplied,
    Staged,
    Word,
)
from eplb_service.protocol.rank_state import Offer, RaiseHalt
from tests.agent.fakes import (
    INCARNATION,
    NEW,
    OLD,
    BrokenEngine,
    StepRig,
    StrayGroup,
    an_order,
    name_of,
    new_desk,
)
from worker_agent.ports.failures import OutOfStep, RankMustEnd, SwitchFailed

GENERATION = Generation(1)


def said(rig: StepRig) -> list[Word]:
    words: list[Word] = []
    while (word := rig.desk.outbox.take()) is not None:
        words.append(word)
    return words


def test_an_order_goes_from_offer_to_cutover_before_the_forward_of_one_step() -> None:
    rig, order = StepRig(), an_order()
    wave = name_of(order)
    rig.desk.inbox.post(Offer(order, None))
    rig.steps(4)
    assert said(rig) == [Accepted(wave), Staged(wave)]
    assert rig.engine.log == []
    rig.desk.inbox.post(Arm(GENERATION, INCARNATION, wave))
    rig.steps(1)
    assert said(rig) == [Armed(wave), CutOver(wave, 4)]
    assert rig.engine.log == ["switch 5"]
    assert rig.cuts.closings == [(4, 0)]


def test_what_hello_tells_is_whole_and_new_at_once_after_a_cutover() -> None:
    rig, order = StepRig(), an_order()
    rig.desk.inbox.post(Offer(order, None))
    rig.steps(4)
    assert rig.desk.snapshot.status.phase is RankPhase.STAGED
    rig.desk.inbox.post(Arm(GENERATION, INCARNATION, name_of(order)))
    rig.steps(1)
    after = rig.desk.snapshot
    assert (after.status.served.epoch, after.status.phase) == (5, RankPhase.SERVING)
    assert after.placement.phy2log.tolist() == NEW.phy2log.tolist()
    assert after.status.served.placement == after.placement.digest()
    assert after.generation_seen == GENERATION


def test_the_group_agrees_at_every_agree_every_th_step_and_at_no_other() -> None:
    rig = StepRig(agree_every=3)
    counts: list[int] = []
    for _ in range(7):
        rig.steps(1)
        counts.append(rig.group.num_agreements)
    assert counts == [1, 1, 1, 2, 2, 2, 3]


def test_a_rank_out_of_step_with_its_group_must_end() -> None:
    rig = StepRig()
    applier = rig.made(group=StrayGroup())
    with pytest.raises(OutOfStep, match="rank 0 agreed before step 0"):
        applier.before_step()


def test_a_switch_that_cannot_be_finished_ends_the_process_past_any_except_exception() -> None:
    rig, order = StepRig(), an_order()
    applier = rig.made(engine=BrokenEngine())
    rig.desk.inbox.post(Offer(order, None))
    for _ in range(4):
        applier.before_step()
    rig.desk.inbox.post(Arm(GENERATION, INCARNATION, name_of(order)))
    with pytest.raises(SwitchFailed, match=r"epoch 5 in use .slot 1 of epoch 5 is on fire"):
        applier.before_step()
    assert not issubclass(RankMustEnd, Exception)


def test_a_revision_of_own_shares_is_in_use_at_the_next_step() -> None:
    rig = StepRig(agree_every=100)
    rig.steps(1)
    shares = even_shares(OLD, Ownership.OWN)
    table = shares.table_of(0).copy()
    table[0, 0, 0] = 3
    own = Shares(table[None], Ownership.OWN)
    name = ShareName(Epoch(0), OLD.digest(), Revision(1), Digest(77))
    rig.desk.inbox.post(NewShares(GENERATION, INCARNATION, name, table_digest(table), own))
    rig.steps(1)
    assert rig.engine.tables[0].tolist() == table.tolist()
    assert said(rig) == [SharesApplied(name, 0)]
    assert rig.desk.snapshot.status.served == name


def test_a_cutover_ends_the_revision_in_the_layers_that_it_leaves_alone_too() -> None:
    rig = StepRig()
    first = even_shares(OLD, Ownership.OWN).table_of(0)
    table = first.copy()
    table[0, 0, 0] = 3
    own = Shares(table[None], Ownership.OWN)
    name = ShareName(Epoch(0), OLD.digest(), Revision(1), Digest(77))
    rig.desk.inbox.post(NewShares(GENERATION, INCARNATION, name, table_digest(table), own))
    rig.steps(1)
    assert rig.engine.in_use.tolist() == table.tolist()
    after = placement_from_ranks([[[0, 1], [2, 0]], [[0, 2], [1, -1]]], num_experts=3)
    order = an_order(after)
    assert order.content.layers.tolist() == [1]
    rig.desk.inbox.post(Offer(order, None))
    rig.steps(4)
    rig.desk.inbox.post(Arm(GENERATION, INCARNATION, name_of(order)))
    rig.steps(2)
    served = rig.desk.snapshot.status.served
    assert (served.epoch, served.revision) == (5, 0)
    assert rig.engine.in_use.tolist() == even_shares(after, Ownership.OWN).table_of(0).tolist()


def test_a_fault_that_the_agent_found_is_answered_by_name() -> None:
    rig, order = StepRig(), an_order()
    rig.desk.inbox.post(Offer(order, (NackReason.NO_ROOM, "too large")))
    rig.steps(2)
    (word,) = said(rig)
    assert (type(word).__name__, getattr(word, "reason", None)) == ("Nack", NackReason.NO_ROOM)
    assert rig.desk.snapshot.status.high_mark == 5


def test_a_halt_is_raised_by_agreement_and_cleared_after_an_audit() -> None:
    rig = StepRig()
    rig.weights.ended.append(RaiseHalt("the mover's group is lost"))
    rig.steps(1)
    assert rig.desk.snapshot.status.halt.is_active
    rig.desk.inbox.post(Resume(GENERATION, INCARNATION, 1))
    rig.steps(4)
    assert not rig.desk.snapshot.status.halt.is_active


def test_an_outbox_that_nobody_empties_drops_words_counts_them_and_steps_go_on() -> None:
    rig = StepRig(desk=new_desk(outbox_size=2))
    for number in range(50):
        rig.desk.inbox.post(Offer(an_order(epoch=5 + number), None))
        rig.steps(1)
    assert rig.desk.outbox.num_dropped > 0
    assert rig.desk.steps_begun == 50
    assert rig.desk.snapshot.status.held is not None, "Hello tells what the words no longer can"


def test_an_inbox_that_is_flooded_refuses_and_every_step_takes_a_bounded_part() -> None:
    rig = StepRig(desk=new_desk(inbox_size=8))
    order = an_order()
    taken = [rig.desk.inbox.post(Offer(order, None)) for _ in range(100)]
    assert taken.count(True) == 8
    assert rig.desk.inbox.num_dropped == 92
    rig.steps(1)
    assert not rig.desk.inbox.is_full


def test_steps_go_on_while_the_agents_thread_is_frozen() -> None:
    """The frozen thread has been stopped where it may be: between two calls of the desk."""
    rig, thaw = StepRig(), threading.Event()
    rig.desk.inbox.post(Offer(an_order(), None))
    frozen = threading.Thread(target=lambda: (rig.desk.bell.wait(5), thaw.wait(30)))
    frozen.start()
    started_s = time.monotonic()
    rig.steps(200)
    took_s = time.monotonic() - started_s
    thaw.set()
    frozen.join(5)
    assert rig.desk.steps_begun == 200
    assert took_s < 2
