"""Looks at a deployment: pure functions from what is held to what operators are shown."""

import numpy as np

from eplb_service.controller.deployment import Deployment
from eplb_service.controller.machine_state import DeploymentState, PlanPhase
from eplb_service.controller.plan_book import KeptPlan
from eplb_service.controller.records import has_same_shape
from eplb_service.controller.revisions import current
from eplb_service.controller.rollcall import away, degraded, drained_so_far
from eplb_service.controller.runs import halt_of, waits_for
from eplb_service.controller.views import (
    HeatView,
    ImbalanceView,
    OperationView,
    RankView,
    RunningView,
    RunView,
    SharesView,
    StatusView,
    WindowView,
)
from eplb_service.domain.errors import InsufficientSamples, InvalidRequest
from eplb_service.domain.heat import Heat, mean_with_data
from eplb_service.domain.ids import FloatArray
from eplb_service.load.fold import heat_of, measured_imbalance, measured_load
from eplb_service.load.window import LoadWindow
from eplb_service.protocol.messages import HaltStatus, RankPhase

NO_HALT = HaltStatus(0, is_active=False, reason="")


def newest_window(deployment: Deployment) -> LoadWindow | None:
    """Enclose the newest load in the phase that is planned for; None before all ranks greeted."""
    if deployment.windows is None:
        return None
    return deployment.windows.window(deployment.tuning.planning.phase)


def measured_window(deployment: Deployment) -> LoadWindow | None:
    """Enclose the newest load that was dispatched by the tables in use now."""
    if deployment.windows is None:
        return None
    used = current(deployment.shares, deployment.driver.state)
    phase = deployment.tuning.planning.phase
    return deployment.windows.window(phase, since=used.since_step if used else 0)


def heat_now(deployment: Deployment) -> Heat:
    """Heat of the newest window and who sent it; zero where there is none."""
    placement = deployment.driver.state.serving.placement
    window, windows = newest_window(deployment), deployment.windows
    is_fit = has_same_shape(placement, deployment.counted_placement)
    if windows is None or window is None or not window.num_steps or not is_fit:
        return Heat(np.zeros((placement.num_layers, placement.num_experts)), None, 0, 0.0)
    by_source = windows.by_source(deployment.tuning.planning.phase)
    return heat_of(window, deployment.counted_placement, by_source)


def status_view(deployment: Deployment, *, now_s: float, wall_s: float) -> StatusView:
    """One deployment at one look; now_s is monotonic, wall_s Unix time."""
    state = deployment.driver.state
    window = (
        deployment.windows.window(deployment.tuning.planning.phase) if deployment.windows else None
    )
    membership = state.membership
    served = membership.served() if membership else None
    return StatusView(
        deployment=deployment.name,
        epoch=state.serving.wave.epoch,
        revision=served.revision if served else 0,
        generation=deployment.driver.errands.generation,
        settled_age_s=max(0.0, wall_s - state.serving.spent_at_s),
        ranks=rank_views(deployment, now_s=now_s),
        window=window_view(deployment, window, now_s=now_s),
        imbalance=imbalance_view(deployment, window),
        operation=_operation_view(deployment, state, wall_s=wall_s),
        shares=shares_view(deployment),
    )


def shares_view(deployment: Deployment) -> SharesView:
    """The shares in use; what a controller did not send itself it cannot judge."""
    stand, nan, because = deployment.shares, float("nan"), deployment.even_because
    used = current(stand, deployment.driver.state)
    if used is None:
        return SharesView(stand.num_revisions, nan, nan, nan, because)
    measured = imbalance_view(deployment, measured_window(deployment))
    return SharesView(stand.num_revisions, used.before, used.predicted, measured.mean, because)


def rank_views(deployment: Deployment, *, now_s: float) -> tuple[RankView, ...]:
    """Every rank of the group, greeted or not."""
    state = deployment.driver.state
    num_ranks = state.serving.placement.layout.num_ranks
    members = state.membership.members if state.membership else (None,) * num_ranks
    views: list[RankView] = []
    tally = deployment.meter.tally
    for rank, member in enumerate(members):
        heard_s = deployment.heard_at_s.get(rank)
        status = member.status if member else None
        views.append(
            RankView(
                rank=rank,
                node=member.profile.node if member else "",
                is_connected=member.is_connected if member else False,
                epoch=status.served.epoch if status else -1,
                phase=(status.phase if status else RankPhase.SERVING).value,
                report_age_s=now_s - heard_s if heard_s is not None else float("inf"),
                step=max(status.step if status else 0, tally.last_step(rank) or 0),
            )
        )
    return tuple(views)


def window_view(deployment: Deployment, window: LoadWindow | None, *, now_s: float) -> WindowView:
    """The newest load window."""
    newest_s = max(deployment.heard_at_s.values(), default=float("-inf"))
    return WindowView(
        num_steps=window.num_steps if window else 0,
        coverage=window.coverage if window else 0.0,
        age_s=now_s - newest_s,
        rejected_reports=deployment.num_rejected,
    )


def imbalance_of(deployment: Deployment, window: LoadWindow) -> FloatArray:
    """[L] measured imbalance of what ranks bear, NaN where a layer has no load."""
    placement = deployment.counted_placement
    num_ranks = placement.layout.num_ranks
    terms = deployment.tuning.planning.costs.terms(num_ranks=num_ranks, num_steps=window.num_steps)
    return measured_imbalance(
        window,
        placement,
        speed=terms.speed(num_ranks),
        expert_cost=terms.fixed,
    )


def imbalance_view(deployment: Deployment, window: LoadWindow | None) -> ImbalanceView:
    """Measured imbalance; NaN where there is no data."""
    nothing = ImbalanceView(mean=float("nan"), worst=float("nan"), worst_layer=-1)
    if window is None:
        return nothing
    values = imbalance_of(deployment, window)
    if np.isnan(values).all():
        return nothing
    worst = int(np.nanargmax(values))
    return ImbalanceView(mean=mean_with_data(values), worst=float(values[worst]), worst_layer=worst)


def heat_view(deployment: Deployment, layers: tuple[int, ...]) -> HeatView:
    """Heat of the newest window; raises InsufficientSamples or InvalidRequest."""
    state = deployment.driver.state
    placement, membership = deployment.counted_placement, state.membership
    chosen = layers or tuple(range(placement.num_layers))
    wrong = [layer for layer in chosen if not 0 <= layer < placement.num_layers]
    if wrong:
        raise InvalidRequest(
            f"layer {wrong[0]} does not exist; {deployment.name} has MoE layers 0 to "
            f"{placement.num_layers - 1}"
        )
    window = newest_window(deployment)
    is_of_group = membership is not None and len(membership.shape.layers) == placement.num_layers
    if window is None or membership is None or not is_of_group or not window.num_steps:
        raise InsufficientSamples(
            f"{deployment.name} has no load window yet: no two common steps were reported by "
            "its ranks; serve some requests and ask again"
        )
    heat, rows = heat_of(window, placement), list(chosen)
    return HeatView(
        deployment=deployment.name,
        layers=chosen,
        model_layers=tuple(membership.shape.layers[layer] for layer in chosen),
        tokens=_rows(heat.tokens, rows),
        rank_load=_rows(measured_load(window, placement), rows),
        imbalance=imbalance_of(deployment, window)[rows],
        num_steps=window.num_steps,
        coverage=window.coverage,
    )


def run_view(deployment: Deployment, kept: KeptPlan) -> RunView:
    """How an applied plan stands."""
    state = deployment.driver.state
    return RunView(
        deployment=deployment.name,
        plan_id=kept.plan.plan_id,
        phase=kept.phase.value,
        epoch=state.serving.wave.epoch,
        moves=kept.moves,
        bytes_moved=kept.bytes_moved,
        text=kept.ending or (waits_for(state) if kept.phase is PlanPhase.RUNNING else ""),
    )


def _rows(values: FloatArray, rows: list[int]) -> FloatArray:
    return np.ascontiguousarray(values[rows])


def _operation_view(
    deployment: Deployment, state: DeploymentState, *, wall_s: float
) -> OperationView:
    freeze = deployment.switches.freeze
    return OperationView(
        is_idle=bool(state.membership and state.membership.is_idle),
        halt=_halt(state),
        freeze=freeze if freeze and freeze.until_s > wall_s else None,
        running=_running_view(deployment, state),
        planning=deployment.tally,
        drained=deployment.drained,
        degraded=degraded(state.serving.placement, away(state.membership)),
        drained_so_far=drained_so_far(state.serving.placement, deployment.drained),
    )


def _holdup(kept: KeptPlan | None, state: DeploymentState) -> str:
    holdup = waits_for(state) if state.run or state.flight else ""
    return holdup if kept else "; ".join(filter(None, ("left by an earlier controller", holdup)))


def _halt(state: DeploymentState) -> HaltStatus:
    if state.fault:
        return HaltStatus(0, is_active=True, reason=state.fault)
    return halt_of(state) or NO_HALT


def _running_view(deployment: Deployment, state: DeploymentState) -> RunningView | None:
    kept = deployment.book.latest_run()
    flight = state.flight
    if kept is None and flight is None:
        return None
    return RunningView(
        plan_id=kept.plan.plan_id if kept else (flight.record.plan_id if flight else ""),
        phase=kept.phase.value if kept else "running",
        wave=kept.num_settled if kept else 0,
        num_waves=len(kept.plan.waves) if kept else 1,
        wave_phase=flight.wave.phase.value if flight else "",
        reason=kept.ending if kept and kept.ending else _holdup(kept, state),
    )
