"""The one object that the step side of an engine sees."""

from dataclasses import dataclass

from eplb_service.clock import Clock
from eplb_service.domain.ids import Epoch, Revision
from eplb_service.protocol.messages import RankPhase
from worker_agent.agent.loop import Agent
from worker_agent.applier.applier import Applier
from worker_agent.applier.desk import Desk
from worker_agent.ports.engine import StepKind
from worker_agent.ports.weights import WeightsPort
from worker_agent.reporter.cuts import Cutter


@dataclass(frozen=True, slots=True)
class HookState:
    """What is served, as of the last before_step."""

    epoch: Epoch
    revision: Revision
    """Of the shares; 0 where they are even."""
    step: int
    """Of the last before_step; -1 before the first."""
    is_migrating: bool
    """Whether an order is held."""
    is_halted: bool


@dataclass(frozen=True, slots=True, eq=False)
class HookParts:
    """What the hook binds together."""

    applier: Applier
    desk: Desk
    cutter: Cutter
    weights: WeightsPort
    agent: Agent
    clock: Clock


class StepHook:
    """Called around every forward of the group, on the step's thread.

    A step is one forward in which the group's MoE collectives run, real or dummy: every
    rank calls both methods for each of them, and for nothing else. A graph capture that
    replays no collective is no step. Neither method waits for anything but, at an
    agreement, the other ranks.
    """

    def __init__(self, parts: HookParts, *, close_within_s: float) -> None:
        self._parts = parts
        self._close_within_s = close_within_s
        self._began_s = 0.0
        self._step = -1

    def before_step(self) -> int:
        """Do what is due before the next forward, and return its number, counted from 0.

        Raises RankMustEnd (a BaseException) where the process must end: let it through.
        """
        self._step = self._parts.applier.before_step()
        self._began_s = self._parts.clock.monotonic_s()
        return self._step

    def after_step(self, kind: StepKind = StepKind.REAL) -> None:
        """Take note that the forward has returned; only the time of real steps is counted.

        Raises TypeError for another kind of kind, such as the runtime's, which has the same names.
        """
        if not isinstance(kind, StepKind):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"a step of kind {kind!r}, of {type(kind).__module__}.{type(kind).__name__}, "
                f"expected a StepKind of {StepKind.__module__}; the step was not counted"
            )
        if kind is StepKind.REAL:
            now_s = self._parts.clock.monotonic_s()
            self._parts.cutter.add_step_seconds(now_s - self._began_s)

    def state(self) -> HookState:
        """Return what is served."""
        status = self._parts.desk.snapshot.status
        return HookState(
            epoch=status.served.epoch,
            revision=status.served.revision,
            step=self._step,
            is_migrating=status.phase is not RankPhase.SERVING,
            is_halted=status.halt.is_active,
        )

    def close(self) -> None:
        """End the agent's thread and the mover's, in bounded time; no step may follow."""
        self._parts.agent.stop(self._close_within_s)
        self._parts.weights.close(self._close_within_s)
