"""A rank group and a plan for tests of the controller, made of the real domain types."""

from dataclasses import replace
from itertools import pairwise
from math import nan

import numpy as np

from eplb_service.controller.machine import begin, step
from eplb_service.controller.machine_state import DeploymentState, Effect, Event, Pace, RankGreeted
from eplb_service.domain.deployment import (
    Counting,
    CountMeaning,
    DeploymentIdentity,
    ModelShape,
    RankProfile,
)
from eplb_service.domain.ids import NO_DIGEST, Epoch, Generation, Incarnation, Revision
from eplb_service.domain.placement import Placement, placement_from_ranks
from eplb_service.domain.plan import Cause, Moving, Origin, Plan, PlannedWave, Price
from eplb_service.domain.shares import Ownership, ShareName, even_shares, table_digest
from eplb_service.domain.wave import WaveContent
from eplb_service.protocol.messages import (
    CutOver,
    HaltStatus,
    Hello,
    RankPhase,
    RankStatus,
    Staged,
    WaveName,
)

PACE = Pace(nudge_interval_s=1.0, wave_deadline_s=30.0, expiry_steps=500, agree_every=1)
FLAT = placement_from_ranks([[[0, 1], [2, 3]]], num_experts=4)
SWAPPED = placement_from_ranks([[[2, 1], [0, 3]]], num_experts=4)
BACK = FLAT
IDENTITY = DeploymentIdentity("tiny", "a", "serve", 0, "ep0", "f32")
SHAPE = ModelShape(layers=(1,), num_experts=4, num_shared=0, top_k=2, bytes_per_expert=100)


def share_name(placement: Placement, epoch: int = 0) -> ShareName:
    return ShareName(Epoch(epoch), placement.digest(), Revision(0), NO_DIGEST)


def status(placement: Placement = FLAT, epoch: int = 0, step: int = 10) -> RankStatus:
    return RankStatus(
        served=share_name(placement, epoch),
        high_mark=Epoch(epoch),
        phase=RankPhase.SERVING,
        held=None,
        outcome=None,
        halt=HaltStatus(0, is_active=False, reason=""),
        step=step,
        is_idle=False,
    )


def hello(
    rank: int,
    *,
    incarnation: int = 1,
    placement: Placement = FLAT,
    epoch: int = 0,
    num_ranks: int = 2,
    sets_shares: bool = True,
) -> Hello:
    return Hello(
        identity=IDENTITY,
        shape=replace(SHAPE, num_experts=placement.num_experts),
        profile=RankProfile(
            rank=rank,
            num_ranks=num_ranks,
            node=f"node{rank}",
            supernode="",
            adapter="test",
            counting=Counting(CountMeaning.RECEIVED),
            ownership=Ownership.OWN,
            num_slots=placement.layout.slots_per_rank[rank],
            staging_rows=2,
            sets_shares=sets_shares,
        ),
        incarnation=Incarnation(incarnation),
        placement=placement,
        status=status(placement, epoch),
        generation_seen=Generation(0),
    )


def planned(old: Placement, new: Placement) -> PlannedWave:
    """One wave that swaps whatever differs in the single layer of `old` and `new`."""
    moves = [
        (0, int(new.phy2log[0, slot]), int(np.flatnonzero(old.phy2log[0] == want)[0]), slot)
        for slot, want in enumerate(new.phy2log[0].tolist())
        if old.phy2log[0, slot] != want
    ]
    shares = even_shares(new, Ownership.OWN)
    content = WaveContent(
        base_epoch=Epoch(0),
        base=old.digest(),
        target=new.digest(),
        layers=np.array([0], dtype=np.int32),
        rows=new.phy2log.copy(),
        transfers=np.array(moves, dtype=np.int32).reshape(-1, 4),
        round_ends=(len(moves),),
        dispatch=tuple(table_digest(shares.tables[rank][[0]]) for rank in range(2)),
    )
    return PlannedWave(content, new, Ownership.OWN)


def plan(*placements: Placement, plan_id: str = "p1") -> Plan:
    pairs = pairwise(placements)
    return Plan(
        plan_id=plan_id,
        policy="test",
        cause=Cause(Origin.OPERATOR, "test", "tester"),
        base_epoch=Epoch(0),
        base=placements[0].digest(),
        waves=tuple(planned(old, new) for old, new in pairs),
        price=Price(
            num_moves=2,
            num_bytes=200,
            imbalance_before=np.array([2.0]),
            imbalance_after=np.array([1.0]),
            payback_steps=10.0,
            step_s=0.04,
            expert_s=0.02,
            won_s=0.01,
            stall_s=0.1,
            moving=Moving(np.array([2]), np.array([200]), np.array([nan]), nan),
        ),
        heat_note="none",
    )


def run_events(state: DeploymentState, *events: Event) -> tuple[DeploymentState, list[Effect]]:
    effects: list[Effect] = []
    for event in events:
        state, more = step(state, event)
        effects.extend(more)
    return state, effects


def group(incarnation: int = 1) -> DeploymentState:
    """Two ranks that have greeted and serve FLAT at epoch 0."""
    state = begin(hello(0, incarnation=incarnation), pace=PACE, now_s=0.0)
    for rank in (0, 1):
        state, _ = step(state, RankGreeted(hello(rank, incarnation=incarnation)))
    return state


def staged(wave: WaveName) -> Staged:
    return Staged(wave)


def cut_over(wave: WaveName, at: int = 20) -> CutOver:
    return CutOver(wave, at)
