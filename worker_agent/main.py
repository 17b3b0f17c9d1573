"""The agent's front door: attach it to an engine's rank.

hook = attach(runtime, group=ep_group, settings=AgentSettings(endpoint="controller:7420"))
while serving:
    hook.before_step()
    runtime.forward(batch)
    hook.after_step(kind)
hook.close()
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch.distributed import ProcessGroup

from eplb_service.domain.deployment import Counting, CountMeaning, ModelShape, RankProfile
from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.ids import Digest, Incarnation, digest_of
from eplb_service.domain.shares import Ownership
from eplb_service.protocol.rank_state import RankState, initial_state, status
from worker_agent.adapters.chunked_mover import ChunkedMover
from worker_agent.adapters.group import TorchGroup
from worker_agent.adapters.grpc_channel import GrpcChannel, Keepalive
from worker_agent.adapters.memory import DigestBook
from worker_agent.adapters.mover import TorchMover
from worker_agent.adapters.runtime import (
    Runtime,
    RuntimeMemory,
    Seat,
    SlotsEngine,
    link_of,
    require_device,
    seat_of,
    served_by,
)
from worker_agent.adapters.system_clock import SystemClock
from worker_agent.adapters.torch_calls import new_group
from worker_agent.adapters.trust import Trust
from worker_agent.agent.checks import Limits
from worker_agent.agent.hook import HookParts, StepHook
from worker_agent.agent.introduction import Introduction
from worker_agent.agent.joining import (
    Serving,
    gather_columns,
    initial_serving,
    load_together,
    meet,
    offer_of,
    require_equal_start,
)
from worker_agent.agent.loop import Agent, Outside
from worker_agent.agent.pace import Pace
from worker_agent.applier.applier import Applier, Start, StepSide
from worker_agent.applier.desk import Desk, Snapshot
from worker_agent.ports.channel import ChannelPort
from worker_agent.reporter.cuts import Cadence, Cutter
from worker_agent.reporter.reporter import Reporter
from worker_agent.settings.settings import AgentSettings, PaceSettings


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The process groups that the agent has for itself."""

    agreeing: TorchGroup
    moving: ProcessGroup


@dataclass(frozen=True, slots=True, eq=False)
class Attached:
    """What a rank has before it greets: its groups, and its engine behind ports."""

    group: TorchGroup
    mover: TorchMover
    engine: SlotsEngine
    initial: Serving
    incarnation: Incarnation
    ownership: Ownership


def attach(
    runtime: Runtime, *, settings: AgentSettings, group: ProcessGroup | None = None
) -> StepHook:
    """Attach an agent to this rank of a runtime and return the hook for its steps.

    group    the expert-parallel group; None is the default group

    Collective over the group, before the first step: it makes two gloo groups of the same
    ranks (for the agreement and for moving weights), waits a bounded time for the controller
    to name a placement, loads it if every rank was told the same, and makes sure that all
    ranks serve the same. Without a controller the runtime's own placement is served.

    Raises InvalidSettings, before it waits for anybody, if the settings do not fit the runtime,
    AttachRefused if ranks differ, and GroupLost if one does not come.
    """
    return attach_over(runtime, street(settings), settings=settings, group=group)


def street(settings: AgentSettings) -> GrpcChannel:
    """Return the street to the controller; raises InvalidSettings where its locks do not fit."""
    pace, tls = settings.pace, settings.tls
    return GrpcChannel(
        settings.endpoint,
        Keepalive(every_s=pace.keepalive_s, timeout_s=pace.keepalive_timeout_s),
        Trust(
            ca=tls.ca,
            certificate=tls.certificate,
            key=tls.key,
            server_name=tls.server_name,
            token_file=settings.token_file,
            insecure=settings.insecure,
        ),
    )


def attach_over(
    runtime: Runtime,
    channel: ChannelPort,
    *,
    settings: AgentSettings,
    group: ProcessGroup | None = None,
    mover: type[TorchMover] = TorchMover,
) -> StepHook:
    """Attach with another street to the controller, or another mover; otherwise as attach."""
    return attach_seat(seat_of(runtime), channel, settings=settings, group=group, mover=mover)


def attach_seat(
    seat: Seat,
    channel: ChannelPort,
    *,
    settings: AgentSettings,
    group: ProcessGroup | None = None,
    mover: type[TorchMover] = TorchMover,
) -> StepHook:
    """Attach to a rank of any engine that has a seat; otherwise as attach_over."""
    clock = SystemClock()
    shape = _shape(seat, settings)
    groups = Groups(
        TorchGroup(new_group(group, timeout_s=settings.group_timeout_s)),
        new_group(group, timeout_s=settings.group_timeout_s),
    )
    told = _fingerprint(seat, shape, settings)
    incarnation = meet(groups.agreeing, told, started_at_ms=int(1000 * clock.wall_s()))
    rank = _prepare(seat, groups, mover, incarnation)
    desk = Desk(_snapshot(rank))
    cadence = Cadence(settings.report_every_steps, settings.sent_every_reports)
    cutter = Cutter(rank.engine, cadence, desk.bell.ring)
    agent = Agent(
        _introduction(seat, rank, shape, settings),
        desk,
        Reporter(cutter, incarnation=rank.incarnation),
        Outside(channel, clock, random.SystemRandom().random),
        _pace(settings.pace),
    )
    serving = _settle(rank, agent, settings)
    applier = Applier(
        Start(_first_state(serving, rank), serving.placement, serving.table),
        StepSide(rank.group, rank.engine, rank.mover, cutter),
        desk,
        agree_every=settings.agree_every,
        serves_corrupt=settings.on_corruption == "serve",
    )
    if serving is not rank.initial:
        agent.greet_again()
    rank.mover.start(rank.engine.filled())
    parts = HookParts(applier, desk, cutter, rank.mover, agent, clock)
    return StepHook(parts, close_within_s=settings.close_within_s)


def _prepare(
    seat: Seat, groups: Groups, mover: type[TorchMover], incarnation: Incarnation
) -> Attached:
    """Learn what all ranks hold. Collective."""
    runtime = seat.runtime
    group, layout, book = groups.agreeing, runtime.layout, DigestBook()
    phy2log = gather_columns(
        group,
        runtime.held().astype("int32"),
        num_columns=layout.num_slots,
        base=layout.base(group.rank),
    )
    placement = served_by(seat, phy2log)
    memory = RuntimeMemory(runtime)
    return Attached(
        group=group,
        mover=_mover(seat, mover, groups)(memory, book, placement.layout, rank=group.rank),
        engine=seat.engine(book, group.rank),
        initial=initial_serving(
            group, placement, runtime.tables().astype("int32"), ownership=seat.ownership
        ),
        incarnation=incarnation,
        ownership=seat.ownership,
    )


def _mover(seat: Seat, mover: type[TorchMover], groups: Groups) -> Callable[..., TorchMover]:
    """Return what makes the mover: the device's own way, where it has one."""
    link = link_of(seat)
    if link is None:
        return partial(mover, group=groups.moving)
    return partial(ChunkedMover, group=link.group, link=link)


def _settle(rank: Attached, agent: Agent, settings: AgentSettings) -> Serving:
    """Start the agent and load what the controller names, if it does in time. Collective."""
    agent.start()
    try:
        welcome = agent.await_welcome(settings.wait_for_welcome_s)
        offer = offer_of(
            welcome,
            rank.initial,
            rank=rank.group.rank,
            staging_rows=rank.engine.staging_rows,
        )
        serving = load_together(
            rank.group, rank.engine, rank.initial, offer, ownership=rank.ownership
        )
        require_equal_start(rank.group, _settings_digest(settings), serving.name)
    except BaseException:
        agent.stop(settings.close_within_s)
        raise
    return serving


def _shape(seat: Seat, settings: AgentSettings) -> ModelShape:
    """Return what the runtime's model is.

    Raises InvalidSettings if its layers are misnamed, or it is on another device than is wanted.
    """
    require_device(seat, settings.device)
    num_layers = len(seat.shape.layers)
    layers = settings.model_layers or tuple(range(num_layers))
    if len(layers) != num_layers or list(layers) != sorted(set(layers)):
        raise InvalidSettings(
            f"model_layers names {list(layers)}; expected {num_layers} numbers, ascending, one for "
            "each MoE layer of the runtime; the rank does not attach"
        )
    return replace(seat.shape, layers=layers)


def _fingerprint(seat: Seat, shape: ModelShape, settings: AgentSettings) -> Digest:
    """Fingerprint of what must be the same on all ranks before they can tell each other more."""
    runtime = seat.runtime
    layout, rows = runtime.layout.slots_per_rank, runtime.tables().shape[2]
    told = f"{shape} {layout} {rows} {seat.ownership}"
    return digest_of((told.encode(), str(_settings_digest(settings)).encode()))


def _settings_digest(settings: AgentSettings) -> Digest:
    """Fingerprint of what must be the same on all ranks."""
    told = f"{settings.agree_every} {settings.on_corruption}"
    return digest_of((told.encode(), settings.deployment.model_dump_json().encode()))


def _first_state(serving: Serving, rank: Attached) -> RankState:
    return initial_state(
        incarnation=rank.incarnation, ownership=rank.ownership, served=serving.name
    )


def _snapshot(rank: Attached) -> Snapshot:
    state = _first_state(rank.initial, rank)
    return Snapshot(status(state, is_idle=False), rank.initial.placement, state.generation)


def _introduction(
    seat: Seat, rank: Attached, shape: ModelShape, settings: AgentSettings
) -> Introduction:
    profile = RankProfile(
        rank=rank.group.rank,
        num_ranks=rank.group.num_ranks,
        node=settings.node,
        supernode=settings.supernode,
        adapter=seat.adapter,
        counting=Counting(CountMeaning.RECEIVED),
        ownership=seat.ownership,
        num_slots=seat.runtime.slots.num_slots,
        staging_rows=seat.runtime.slots.staging_rows,
        sets_shares=seat.sets_shares,
    )
    return Introduction(
        identity=settings.deployment.identity(),
        shape=shape,
        incarnation=rank.incarnation,
        limits=Limits(profile, table_rows=rank.initial.table.shape[2], engine_fault=seat.fault),
    )


def _pace(pace: PaceSettings) -> Pace:
    return Pace(
        poll_s=pace.poll_s,
        idle_after_s=pace.idle_after_s,
        welcome_within_s=pace.welcome_within_s,
        first_backoff_s=pace.first_backoff_s,
        max_backoff_s=pace.max_backoff_s,
    )
