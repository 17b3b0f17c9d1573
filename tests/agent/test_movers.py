"""Weights are moved and audited on a thread of their own, verified by digest."""

import threading
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b

import numpy as np
import pytest
import torch
from torch import Tensor

from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import DropReason
from eplb_service.protocol.rank_state import Audited, RaiseHalt, RoundDone, RoundFailed
from tests.agent.fakes import OLD, an_order, name_of
from worker_agent.adapters.loopback import LoopbackMover
from worker_agent.adapters.memory import DigestBook, Maps
from worker_agent.ports.weights import WeightsEvent

PATIENCE_S = 10.0


class FakeMemory:
    """Meets ExpertMemory: an expert is one tensor that names layer and expert."""

    def __init__(self, rank: int) -> None:
        own = OLD.phy2log[:, OLD.layout.slots_of(rank)]
        self._slots = {
            (layer, slot): torch.tensor([layer, int(own[layer, slot])])
            for layer, slot in np.ndindex(*own.shape)
        }
        table = even_shares(OLD, Ownership.OWN).table_of(rank)
        self.held_maps = Maps(own.astype(np.int64), table.astype(np.int64))
        self._staging = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]

    def slot(self, layer: int, local_slot: int) -> Mapping[str, Tensor]:
        return {"w": self._slots[layer, local_slot]}

    def staging(self, row: int) -> Mapping[str, Tensor]:
        return {"w": self._staging[row]}

    def maps(self) -> Maps:
        return self.held_maps

    def digest(self, tensors: Mapping[str, Tensor]) -> bytes:
        return blake2b(tensors["w"].numpy().tobytes(), digest_size=16).digest()


class UnplugableMover(LoopbackMover):
    """Its line can be cut."""

    is_cut = False

    def move(self, order: Order, number: int) -> None:
        if self.is_cut:
            raise ConnectionError("the line is cut")
        super().move(order, number)


class GatedMover(LoopbackMover):
    """Moves nothing before its gate opens."""

    gate = threading.Event()

    def move(self, order: Order, number: int) -> None:
        assert self.gate.wait(PATIENCE_S)
        super().move(order, number)


class FlippingMover(LoopbackMover):
    """A bit flips on the way."""

    def _verify(self, row: int, sent: bytes) -> None:
        self.memory.staging(row)["w"][0] ^= 1
        super()._verify(row, sent)


class Rig:
    """Rank 0 of two, in one process."""

    def __init__(self, kind: type[LoopbackMover] = UnplugableMover) -> None:
        self.memories = [FakeMemory(rank) for rank in range(2)]
        self.books = [DigestBook(), DigestBook()]
        for local_slot in range(2):
            peers = self.memories[1]
            self.books[1].note_slot(0, local_slot, peers.digest(peers.slot(0, local_slot)))
        self.mover = kind(self.memories, self.books, OLD.layout, rank=0)
        self.mover.start([(0, 0), (0, 1), (1, 0), (1, 1)])

    def ended(self) -> WeightsEvent:
        return wait_for(self.mover.poll)


def wait_for(poll: Callable[[], WeightsEvent | None]) -> WeightsEvent:
    deadline_s = time.monotonic() + PATIENCE_S
    woken = threading.Event()
    while (event := poll()) is None:
        assert time.monotonic() < deadline_s, "nothing ended"
        woken.wait(0.005)
    return event


def test_a_round_brings_the_expert_into_its_staging_row_and_leaves_the_slots_alone() -> None:
    rig, order = Rig(), an_order()
    rig.mover.begin_round(order, 1)
    assert rig.ended() == RoundDone(name_of(order), 1)
    assert torch.equal(rig.memories[0].staging(0)["w"], torch.tensor([0, 2]))
    assert torch.equal(rig.memories[0].slot(0, 1)["w"], torch.tensor([0, 1]))
    rig.mover.close(PATIENCE_S)


def test_what_arrives_changed_fails_the_round_by_name() -> None:
    rig, order = Rig(FlippingMover), an_order()
    rig.mover.begin_round(order, 1)
    failed = rig.ended()
    assert isinstance(failed, RoundFailed)
    assert failed.reason is DropReason.DIGEST_MISMATCH
    assert "staging row 0 of rank 0" in failed.text
    rig.mover.close(PATIENCE_S)


def test_a_source_that_is_not_what_was_put_there_fails_the_round_and_halts_by_name() -> None:
    rig, order = Rig(), an_order()
    rig.memories[1].slot(0, 0)["w"][0] += 1
    rig.mover.begin_round(order, 1)
    failed, halt = rig.ended(), rig.ended()
    assert isinstance(halt, RaiseHalt)
    assert "layer 0, local slot 0 of rank 1 does not hold expert 2" in halt.reason
    assert isinstance(failed, RoundFailed)
    assert failed.reason is DropReason.DIGEST_MISMATCH
    rig.mover.begin_audit(1)
    assert rig.ended() == Audited(1, is_clean=True, text=""), "the mover itself is as good as new"
    rig.mover.close(PATIENCE_S)


class BreakingMemory(FakeMemory):
    """Cannot be read any more once it is broken."""

    is_broken = False

    def digest(self, tensors: Mapping[str, Tensor]) -> bytes:
        if self.is_broken:
            raise MemoryError("no bytes left")
        return super().digest(tensors)


def test_an_audit_that_cannot_be_made_is_a_halt_and_the_mover_lives_on() -> None:
    rig = Rig()
    rig.mover.begin_audit(1)
    assert rig.ended() == Audited(1, is_clean=True, text="")
    broken = BreakingMemory(0)
    broken.is_broken = True
    rig.mover.memory = broken
    rig.mover.begin_audit(2)
    assert rig.ended() == RaiseHalt("no bytes left")
    rig.mover.memory = rig.memories[0]
    rig.mover.begin_audit(3)
    assert rig.ended() == Audited(3, is_clean=False, text="no bytes left")
    rig.mover.close(PATIENCE_S)


def test_an_audit_asked_for_again_while_it_waits_is_made_once() -> None:
    rig, gate = Rig(GatedMover), GatedMover.gate
    gate.clear()
    rig.mover.begin_round(an_order(), 1)
    for _ in range(1000):
        rig.mover.begin_audit(5)
    gate.set()
    rig.ended()
    assert rig.ended() == Audited(5, is_clean=True, text="")
    rig.mover.close(PATIENCE_S)
    assert rig.mover.poll() is None


def test_a_mover_that_lost_its_peers_raises_a_halt_that_no_audit_clears() -> None:
    rig, order = Rig(), an_order()
    assert isinstance(rig.mover, UnplugableMover)
    rig.mover.is_cut = True
    rig.mover.begin_round(order, 1)
    assert rig.ended() == RaiseHalt("the line is cut")
    failed = rig.ended()
    assert isinstance(failed, RoundFailed)
    assert failed.reason is DropReason.TRANSFER_FAILED
    rig.mover.begin_audit(1)
    assert rig.ended() == Audited(1, is_clean=False, text="the line is cut")
    rig.mover.close(PATIENCE_S)


def test_an_audit_passes_while_every_slot_holds_what_was_put_there() -> None:
    rig = Rig()
    rig.mover.begin_audit(3)
    assert rig.ended() == Audited(3, is_clean=True, text="")
    rig.memories[0].slot(1, 0)["w"][1] += 1
    rig.mover.begin_audit(4)
    found = rig.ended()
    assert isinstance(found, Audited)
    assert not found.is_clean
    assert "(1, 0)" in found.text
    rig.mover.close(PATIENCE_S)


def test_an_audit_after_a_switch_holds_slots_against_what_was_staged() -> None:
    rig, order = Rig(), an_order()
    rig.mover.begin_round(order, 1)
    rig.ended()
    rig.memories[0].slot(0, 1)["w"].copy_(rig.memories[0].staging(0)["w"])
    rig.books[0].install(0, 1, 0)
    rig.books[0].empty(1, 1)
    rig.memories[0].slot(1, 1)["w"][0] = 99
    rig.mover.begin_audit(1)
    assert rig.ended() == Audited(1, is_clean=True, text="")
    rig.mover.close(PATIENCE_S)


def test_closing_in_the_middle_of_a_round_that_hangs_ends_in_time_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, gate = Rig(GatedMover), GatedMover.gate
    gate.clear()
    rig.mover.begin_round(an_order(), 1)
    started_s = time.monotonic()
    rig.mover.close(0.05)
    assert time.monotonic() - started_s < PATIENCE_S / 2
    assert "mover left behind in a round" in caplog.messages
    gate.set()
    rig.mover.close(PATIENCE_S)


def test_closing_a_mover_ends_its_thread() -> None:
    rig = Rig()
    before = threading.active_count()
    rig.mover.close(PATIENCE_S)
    assert threading.active_count() == before - 1
