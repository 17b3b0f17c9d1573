"""Plans, verdicts, runs and history.

Axes    C changed layers   M transfers   L MoE layers

A plan's placements and dispatch tables stay with the controller: they would be hundreds of
megabytes for a large model, and nobody reads them. What travels is a PlanSummary.
"""

from dataclasses import dataclass
from math import nan

import numpy as np
from eplb.v1 import admin_pb2

from eplb_service.controller.records import HistoryEntry
from eplb_service.controller.views import HistoryView, NothingView, PlanView, RunView
from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.ids import IntArray
from eplb_service.domain.plan import Answer, Finding, Moving, Origin, Plan, Price, Verdict
from eplb_service.wire.matrix import decode_counts, decode_floats, decode_ints, encode_matrix
from eplb_service.wire.scalars import EnumTable, require

ORIGIN = EnumTable(
    {
        Origin.AUTOMATIC: admin_pb2.PLAN_ORIGIN_AUTOMATIC,
        Origin.OPERATOR: admin_pb2.PLAN_ORIGIN_OPERATOR,
    }
)
ANSWER = EnumTable(
    {
        Answer.YES: admin_pb2.ANSWER_YES,
        Answer.THROTTLE: admin_pb2.ANSWER_THROTTLE,
        Answer.NO: admin_pb2.ANSWER_NO,
    }
)

NO_LAYERS = np.zeros(0, np.int64)
UNTOLD = Moving(NO_LAYERS, NO_LAYERS, np.zeros(0), nan)
"""Of a controller of the release before."""


@dataclass(frozen=True, slots=True, eq=False)
class WaveSummary:
    """What one wave of a plan changes."""

    layers: IntArray
    """[C] changed MoE layers, ascending."""
    transfers: IntArray
    """[M, 4] layer, expert, source slot, target slot."""
    num_rounds: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanSummary:
    """A plan as operators see it."""

    plan_id: str
    policy: str
    origin: Origin
    reason: str
    base_epoch: int
    waves: tuple[WaveSummary, ...]
    price: Price
    heat_note: str
    who: str
    """Name of the person who asked; empty where the controller did by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class ShownPlan:
    """A PlanView as it arrives at an operator."""

    deployment: str
    plan: PlanSummary
    verdict: Verdict
    phase: str
    is_dry_run: bool
    drawn_at_s: float


def summarize(plan: Plan) -> PlanSummary:
    """Leave out of a plan what does not travel."""
    return PlanSummary(
        plan_id=plan.plan_id,
        policy=plan.policy,
        origin=plan.cause.origin,
        reason=plan.cause.reason,
        base_epoch=plan.base_epoch,
        waves=tuple(
            WaveSummary(wave.content.layers, wave.content.transfers, wave.content.num_rounds)
            for wave in plan.waves
        ),
        price=plan.price,
        heat_note=plan.heat_note,
        who=plan.cause.who,
    )


def encode_plan(view: PlanView) -> admin_pb2.PlanView:
    """Translate a plan with its verdict."""
    return admin_pb2.PlanView(
        deployment=view.deployment,
        plan=_encode_summary(summarize(view.plan)),
        verdict=_encode_verdict(view.verdict),
        phase=view.phase,
        is_dry_run=view.is_dry_run,
        drawn_at_s=view.drawn_at_s,
    )


def decode_plan(message: admin_pb2.PlanView) -> ShownPlan:
    """Translate a plan with its verdict; raises InvalidTable or InvalidRequest."""
    require(message, "plan", "verdict")
    return ShownPlan(
        deployment=message.deployment,
        plan=_decode_summary(message.plan),
        verdict=_decode_verdict(message.verdict),
        phase=message.phase,
        is_dry_run=message.is_dry_run,
        drawn_at_s=message.drawn_at_s,
    )


def encode_answer(view: PlanView | NothingView) -> admin_pb2.PlanAnswer:
    """Translate a plan, or why there is none."""
    match view:
        case PlanView():
            return admin_pb2.PlanAnswer(plan=encode_plan(view))
        case NothingView(deployment, reason, text):
            nothing = admin_pb2.NothingView(deployment=deployment, reason=reason, text=text)
            return admin_pb2.PlanAnswer(nothing=nothing)


def decode_answer(message: admin_pb2.PlanAnswer) -> ShownPlan | NothingView:
    """Translate a plan, or why there is none."""
    match message.WhichOneof("answer"):
        case "plan":
            return decode_plan(message.plan)
        case "nothing":
            nothing = message.nothing
            return NothingView(nothing.deployment, nothing.reason, nothing.text)
        case None:
            raise InvalidRequest("the answer names neither a plan nor why there is none")


def encode_run(view: RunView) -> admin_pb2.RunView:
    """Translate how an applied plan stands."""
    return admin_pb2.RunView(
        deployment=view.deployment,
        plan_id=view.plan_id,
        phase=view.phase,
        epoch=view.epoch,
        moves=view.moves,
        bytes_moved=view.bytes_moved,
        text=view.text,
    )


def decode_run(message: admin_pb2.RunView) -> RunView:
    """Translate how an applied plan stands."""
    return RunView(
        deployment=message.deployment,
        plan_id=message.plan_id,
        phase=message.phase,
        epoch=message.epoch,
        moves=message.moves,
        bytes_moved=message.bytes_moved,
        text=message.text,
    )


def encode_history(view: HistoryView) -> admin_pb2.HistoryResponse:
    """Translate a deployment's history."""
    entries = [
        admin_pb2.HistoryEntry(
            at_s=entry.at_s,
            kind=entry.kind,
            plan_id=entry.plan_id,
            epoch=entry.epoch,
            text=entry.text,
            who=entry.who,
        )
        for entry in view.entries
    ]
    return admin_pb2.HistoryResponse(deployment=view.deployment, entries=entries)


def decode_history(message: admin_pb2.HistoryResponse) -> HistoryView:
    """Translate a deployment's history."""
    entries = tuple(
        HistoryEntry(entry.at_s, entry.kind, entry.plan_id, entry.epoch, entry.text, entry.who)
        for entry in message.entries
    )
    return HistoryView(message.deployment, entries)


def _encode_summary(plan: PlanSummary) -> admin_pb2.PlanSummary:
    return admin_pb2.PlanSummary(
        plan_id=plan.plan_id,
        policy=plan.policy,
        origin=ORIGIN.encode(plan.origin),
        reason=plan.reason,
        base_epoch=plan.base_epoch,
        waves=[
            admin_pb2.WaveSummary(
                layers=encode_matrix(wave.layers),
                transfers=encode_matrix(wave.transfers),
                num_rounds=wave.num_rounds,
            )
            for wave in plan.waves
        ],
        price=_encode_price(plan.price),
        heat_note=plan.heat_note,
        who=plan.who,
    )


def _decode_summary(message: admin_pb2.PlanSummary) -> PlanSummary:
    require(message, "price")
    return PlanSummary(
        plan_id=message.plan_id,
        policy=message.policy,
        origin=ORIGIN.decode(message.origin, "plan.origin"),
        reason=message.reason,
        base_epoch=message.base_epoch,
        waves=tuple(
            WaveSummary(
                decode_ints(wave.layers, "wave.layers", axes=1),
                decode_ints(wave.transfers, "wave.transfers", axes=2),
                wave.num_rounds,
            )
            for wave in message.waves
        ),
        price=_decode_price(message.price),
        heat_note=message.heat_note,
        who=message.who,
    )


def _encode_price(price: Price) -> admin_pb2.PriceView:
    return admin_pb2.PriceView(
        num_moves=price.num_moves,
        num_bytes=price.num_bytes,
        imbalance_before=encode_matrix(price.imbalance_before),
        imbalance_after=encode_matrix(price.imbalance_after),
        payback_steps=price.payback_steps,
        step_s=price.step_s,
        expert_s=price.expert_s,
        won_s=price.won_s,
        stall_s=price.stall_s,
        moving=admin_pb2.MovingView(
            num_moves=encode_matrix(price.moving.num_moves),
            num_bytes=encode_matrix(price.moving.num_bytes),
            seconds=encode_matrix(price.moving.seconds),
            whole_s=price.moving.whole_s,
        ),
    )


def _decode_price(message: admin_pb2.PriceView) -> Price:
    return Price(
        num_moves=message.num_moves,
        num_bytes=message.num_bytes,
        imbalance_before=decode_floats(message.imbalance_before, "imbalance_before", axes=1),
        imbalance_after=decode_floats(message.imbalance_after, "imbalance_after", axes=1),
        payback_steps=message.payback_steps,
        step_s=message.step_s,
        expert_s=message.expert_s,
        won_s=message.won_s,
        stall_s=message.stall_s,
        moving=_decode_moving(message.moving) if message.HasField("moving") else UNTOLD,
    )


def _decode_moving(message: admin_pb2.MovingView) -> Moving:
    return Moving(
        num_moves=decode_counts(message.num_moves, "num_moves", axes=1),
        num_bytes=decode_counts(message.num_bytes, "num_bytes", axes=1),
        seconds=decode_floats(message.seconds, "seconds", axes=1),
        whole_s=message.whole_s,
    )


def _encode_verdict(verdict: Verdict) -> admin_pb2.Verdict:
    findings = [
        admin_pb2.Finding(gate=f.gate, answer=ANSWER.encode(f.answer), text=f.text)
        for f in verdict.findings
    ]
    return admin_pb2.Verdict(
        answer=ANSWER.encode(verdict.answer), num_waves=verdict.num_waves, findings=findings
    )


def _decode_verdict(message: admin_pb2.Verdict) -> Verdict:
    findings = tuple(
        Finding(f.gate, ANSWER.decode(f.answer, "finding.answer"), f.text) for f in message.findings
    )
    return Verdict(ANSWER.decode(message.answer, "verdict.answer"), message.num_waves, findings)
