"""How deployments stand, and their heat; NaN means "no data"."""

from eplb.v1 import admin_pb2

from eplb_service.controller.records import Freeze
from eplb_service.controller.views import (
    NO_SHARES,
    HeatView,
    ImbalanceView,
    OperationView,
    PlanningView,
    RankView,
    RefusalView,
    RunningView,
    SharesView,
    StatusView,
    WindowView,
)
from eplb_service.wire.matrix import decode_floats, encode_matrix
from eplb_service.wire.nouns import decode_halt, encode_halt
from eplb_service.wire.scalars import require


def encode_status(view: StatusView) -> admin_pb2.DeploymentStatus:
    """Translate one deployment's state."""
    return admin_pb2.DeploymentStatus(
        deployment=view.deployment,
        epoch=view.epoch,
        revision=view.revision,
        generation=view.generation,
        settled_age_s=view.settled_age_s,
        ranks=[_encode_rank(rank) for rank in view.ranks],
        window=_encode_window(view.window),
        imbalance=admin_pb2.ImbalanceView(
            mean=view.imbalance.mean,
            worst=view.imbalance.worst,
            worst_layer=view.imbalance.worst_layer,
        ),
        operation=_encode_operation(view.operation),
        shares=admin_pb2.SharesView(
            num_revisions=view.shares.num_revisions,
            before=view.shares.before,
            predicted=view.shares.predicted,
            measured=view.shares.measured,
            even_because=view.shares.even_because,
        ),
    )


def decode_status(message: admin_pb2.DeploymentStatus) -> StatusView:
    """Translate one deployment's state; raises InvalidRequest where a part is absent."""
    require(message, "window", "imbalance", "operation")
    imbalance = message.imbalance
    return StatusView(
        deployment=message.deployment,
        epoch=message.epoch,
        revision=message.revision,
        generation=message.generation,
        settled_age_s=message.settled_age_s,
        ranks=tuple(_decode_rank(rank) for rank in message.ranks),
        window=_decode_window(message.window),
        imbalance=ImbalanceView(imbalance.mean, imbalance.worst, imbalance.worst_layer),
        operation=_decode_operation(message.operation),
        shares=_decode_shares(message.shares) if message.HasField("shares") else NO_SHARES,
    )


def encode_refusal(view: RefusalView) -> admin_pb2.RefusedRank:
    """Translate a rank that was refused."""
    return admin_pb2.RefusedRank(
        deployment=view.deployment, rank=view.rank, why=view.why, age_s=view.age_s
    )


def decode_refusal(message: admin_pb2.RefusedRank) -> RefusalView:
    """Translate a rank that was refused."""
    return RefusalView(message.deployment, message.rank, message.why, message.age_s)


def _decode_shares(message: admin_pb2.SharesView) -> SharesView:
    return SharesView(
        message.num_revisions,
        message.before,
        message.predicted,
        message.measured,
        message.even_because,
    )


def encode_heat(view: HeatView) -> admin_pb2.HeatResponse:
    """Translate heat."""
    return admin_pb2.HeatResponse(
        deployment=view.deployment,
        layers=view.layers,
        model_layers=view.model_layers,
        tokens=encode_matrix(view.tokens),
        rank_load=encode_matrix(view.rank_load),
        imbalance=encode_matrix(view.imbalance),
        num_steps=view.num_steps,
        coverage=view.coverage,
    )


def decode_heat(message: admin_pb2.HeatResponse) -> HeatView:
    """Translate heat; raises InvalidTable."""
    return HeatView(
        deployment=message.deployment,
        layers=tuple(message.layers),
        model_layers=tuple(message.model_layers),
        tokens=decode_floats(message.tokens, "heat.tokens", axes=2),
        rank_load=decode_floats(message.rank_load, "heat.rank_load", axes=2),
        imbalance=decode_floats(message.imbalance, "heat.imbalance", axes=1),
        num_steps=message.num_steps,
        coverage=message.coverage,
    )


def _encode_rank(view: RankView) -> admin_pb2.RankView:
    return admin_pb2.RankView(
        rank=view.rank,
        node=view.node,
        is_connected=view.is_connected,
        epoch=view.epoch,
        phase=view.phase,
        report_age_s=view.report_age_s,
        step=view.step,
    )


def _decode_rank(message: admin_pb2.RankView) -> RankView:
    return RankView(
        rank=message.rank,
        node=message.node,
        is_connected=message.is_connected,
        epoch=message.epoch,
        phase=message.phase,
        report_age_s=message.report_age_s,
        step=message.step,
    )


def _encode_window(view: WindowView) -> admin_pb2.WindowView:
    return admin_pb2.WindowView(
        num_steps=view.num_steps,
        coverage=view.coverage,
        age_s=view.age_s,
        rejected_reports=view.rejected_reports,
    )


def _decode_window(message: admin_pb2.WindowView) -> WindowView:
    return WindowView(message.num_steps, message.coverage, message.age_s, message.rejected_reports)


def _encode_operation(view: OperationView) -> admin_pb2.OperationView:
    freeze, planning = view.freeze, view.planning
    return admin_pb2.OperationView(
        is_idle=view.is_idle,
        halt=encode_halt(view.halt),
        freeze=None
        if freeze is None
        else admin_pb2.FreezeView(until_s=freeze.until_s, who=freeze.who, reason=freeze.reason),
        running=None if view.running is None else _encode_running(view.running),
        planning=admin_pb2.PlanningView(
            num_skipped=planning.num_skipped,
            num_failed=planning.num_failed,
            last_skip=planning.last_skip,
            last_error=planning.last_error,
        ),
        drained_ranks=view.drained,
        degraded=view.degraded,
        drained_so_far=view.drained_so_far,
    )


def _decode_operation(message: admin_pb2.OperationView) -> OperationView:
    require(message, "halt", "planning")
    freeze, planning = message.freeze, message.planning
    return OperationView(
        is_idle=message.is_idle,
        halt=decode_halt(message.halt),
        freeze=Freeze(freeze.until_s, freeze.who, freeze.reason)
        if message.HasField("freeze")
        else None,
        running=_decode_running(message.running) if message.HasField("running") else None,
        planning=PlanningView(
            planning.num_skipped, planning.num_failed, planning.last_skip, planning.last_error
        ),
        drained=tuple(message.drained_ranks),
        degraded=message.degraded,
        drained_so_far=message.drained_so_far,
    )


def _encode_running(view: RunningView) -> admin_pb2.RunningView:
    return admin_pb2.RunningView(
        plan_id=view.plan_id,
        phase=view.phase,
        wave=view.wave,
        num_waves=view.num_waves,
        wave_phase=view.wave_phase,
        reason=view.reason,
    )


def _decode_running(message: admin_pb2.RunningView) -> RunningView:
    return RunningView(
        plan_id=message.plan_id,
        phase=message.phase,
        wave=message.wave,
        num_waves=message.num_waves,
        wave_phase=message.wave_phase,
        reason=message.reason,
    )
