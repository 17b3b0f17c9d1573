"""Fakes of the agent's ports for one rank, and a small wave for it to carry out."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from eplb_service.domain.deployment import (
    Counting,
    CountMeaning,
    DeploymentIdentity,
    ModelShape,
    RankProfile,
)
from eplb_service.domain.ids import Epoch, Incarnation, IntArray, Revision
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.shares import Ownership, ShareName, even_shares, table_digest
from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import WaveName
from eplb_service.protocol.rank_state import Audited, RankState, RoundDone, initial_state, status
from tests.agent.scripts import Spent, order_of, waves_between
from worker_agent.agent.checks import Limits
from worker_agent.agent.introduction import Introduction
from worker_agent.agent.joining import shares_digest
from worker_agent.applier.applier import Applier, Start, StepSide
from worker_agent.applier.desk import Desk, Snapshot
from worker_agent.ports.engine import Counters, StepTotals
from worker_agent.ports.weights import Restage, WeightsEvent

INCARNATION = Incarnation(1_700_000_000_000)
NEVER = 1 << 30
OLD = placement_from_ranks([[[0, 1], [2, 0]], [[0, 1], [2, -1]]], num_experts=3)
NEW = placement_from_ranks([[[0, 2], [1, 0]], [[0, 1], [2, -1]]], num_experts=3)
"""Layer 0: the ranks exchange experts 1 and 2. Layer 1 stays."""
PROFILE = RankProfile(
    rank=0,
    num_ranks=2,
    node="n0",
    supernode="",
    adapter="fake",
    counting=Counting(CountMeaning.RECEIVED),
    ownership=Ownership.OWN,
    num_slots=2,
    staging_rows=2,
    sets_shares=True,
)
LIMITS = Limits(PROFILE, table_rows=1)
ME = Introduction(
    DeploymentIdentity("m", "0", "serve", 0, "0", "float32"),
    ModelShape((0, 1), num_experts=3, num_shared=0, top_k=1, bytes_per_expert=1),
    INCARNATION,
    LIMITS,
)


def served_name(placement: Placement, epoch: int = 0) -> ShareName:
    """Name of a placement with its even shares."""
    tables = even_shares(placement, Ownership.OWN).tables
    digest = shares_digest([table_digest(table) for table in tables])
    return ShareName(Epoch(epoch), placement.digest(), Revision(0), digest)


def first_state(placement: Placement = OLD) -> RankState:
    """A rank that has just loaded a placement at epoch 0."""
    return initial_state(
        incarnation=INCARNATION, ownership=Ownership.OWN, served=served_name(placement)
    )


def new_desk(*, inbox_size: int = 64, outbox_size: int = 256) -> Desk:
    """A desk as it is before the first step."""
    state = first_state()
    snapshot = Snapshot(status(state, is_idle=False), OLD, state.generation)
    return Desk(snapshot, inbox_size=inbox_size, outbox_size=outbox_size)


def an_order(
    new: Placement = NEW, *, old: Placement = OLD, epoch: int = 5, expires_at_step: int = NEVER
) -> Order:
    """Rank 0's part of the one wave between two placements."""
    (wave,) = waves_between(old, new, staging_rows=8)
    spent = Spent(wave, base_epoch=0, epoch=epoch, expires_at_step=expires_at_step)
    return order_of(spent, rank=0, incarnation=INCARNATION)


def name_of(order: Order) -> WaveName:
    """Name of the order's wave."""
    return WaveName(order.epoch, order.digest)


class LoneGroup:
    """Meets GroupPort for a rank whose peers say just what it says."""

    rank = 0
    num_ranks = 1

    def __init__(self) -> None:
        self.num_agreements = 0

    def agree(self, vector: Sequence[int]) -> tuple[int, ...]:
        self.num_agreements += 1
        return tuple(vector)


class StrayGroup(LoneGroup):
    """One peer is a step behind."""

    def agree(self, vector: Sequence[int]) -> tuple[int, ...]:
        return (vector[0] - 1, *super().agree(vector)[1:])


class FakeEngine:
    """Meets EnginePort."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.tables: list[IntArray] = []
        self.in_use: IntArray = even_shares(OLD, Ownership.OWN).table_of(PROFILE.rank).copy()
        """[L, E, J] what the rank dispatches by."""
        self.num_steps = 0

    def load(self, placement: Placement, table: IntArray) -> None:
        self.log.append(f"load {placement.phy2log.tolist()}")
        self.tables.append(table)

    def switch(self, order: Order) -> None:
        self.log.append(f"switch {order.epoch}")
        self.in_use[order.content.layers] = order.dispatch

    def apply_table(self, table: IntArray) -> None:
        self.log.append("table")
        self.tables.append(table)
        self.in_use = table.copy()

    def restore(self, layer: int, local_slot: int, row: int) -> None:
        self.log.append(f"restore {layer} {local_slot} {row}")

    def counters(self) -> Counters:
        """Ten decode tokens to every slot, and to every expert, in each step."""
        per_step = self.num_steps * 10
        received = np.zeros((2, 2, 2), dtype=np.int64)
        sent = np.zeros((2, 2, 3), dtype=np.int64)
        received[1], sent[1] = per_step, per_step
        return Counters(
            received=received,
            sent=sent,
            tokens=np.array([0, 3 * per_step], dtype=np.int64),
            steps=StepTotals(real=self.num_steps, dummy=0, warmup=0, profile=0),
            padding_rows=self.num_steps,
            overflow_tokens=0,
            expert_seconds=0.5 * self.num_steps,
        )


class BrokenEngine(FakeEngine):
    """Cannot switch."""

    def switch(self, order: Order) -> None:
        raise ValueError(f"slot 1 of epoch {order.epoch} is on fire")


class FakeWeights:
    """Meets WeightsPort: everything begun is over by the next step, unless it is held."""

    def __init__(self) -> None:
        self.ended: deque[WeightsEvent] = deque()
        self.restaged: list[Restage] = []
        self.is_held = False

    def begin_round(self, order: Order, number: int) -> None:
        self.ended.append(RoundDone(name_of(order), number))

    def begin_audit(self, halt_number: int) -> None:
        self.ended.append(Audited(halt_number, is_clean=True, text=""))

    def begin_look(self, placement: Placement, table: IntArray) -> None:
        """Whatever is asked for, all slots are as they should be."""

    def begin_restage(self, restage: Restage) -> None:
        self.restaged.append(restage)

    def poll(self) -> WeightsEvent | None:
        return self.ended.popleft() if self.ended and not self.is_held else None

    def close(self, timeout_s: float) -> None:
        del timeout_s


class FakeCuts:
    """Meets CutsPort."""

    def __init__(self) -> None:
        self.closings: list[tuple[int, Epoch]] = []

    def at_step(self, step: int, served: ShareName, placement: Placement) -> None:
        assert placement.digest() == served.placement, f"step {step} is cut under a foreign name"

    def closing(self, step: int, served: ShareName, placement: Placement) -> None:
        assert placement.digest() == served.placement
        self.closings.append((step, served.epoch))


class StepRig:
    """An applier among fakes."""

    def __init__(self, *, agree_every: int = 2, desk: Desk | None = None) -> None:
        self.group, self.engine, self.weights = LoneGroup(), FakeEngine(), FakeWeights()
        self.cuts, self.desk = FakeCuts(), desk or new_desk()
        self.applier = self.made(agree_every=agree_every)

    def made(
        self,
        *,
        agree_every: int = 2,
        group: LoneGroup | None = None,
        engine: FakeEngine | None = None,
    ) -> Applier:
        parts = StepSide(group or self.group, engine or self.engine, self.weights, self.cuts)
        table = even_shares(OLD, Ownership.OWN).table_of(PROFILE.rank)
        serving = Start(first_state(), OLD, table)
        return Applier(serving, parts, self.desk, agree_every=agree_every)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.applier.before_step()
