"""The worker agent as the demo's step loop sees it."""

from benchmarks.demo.engine import HookState
from benchmarks.demo.model import AGREE_EVERY
from benchmarks.demo.records import AgentSetup
from moe_runtime.runtime import MoeRuntime, StepKind
from worker_agent.main import attach
from worker_agent.ports import engine
from worker_agent.settings.settings import AgentSettings, DeploymentSettings

__all__ = ["AgentHook"]

_KINDS = {
    StepKind.REAL: engine.StepKind.REAL,
    StepKind.DUMMY: engine.StepKind.DUMMY,
    StepKind.WARMUP: engine.StepKind.WARMUP,
    StepKind.PROFILE: engine.StepKind.PROFILE,
}
"""The runtime and the agent know nothing of each other, so each has its own word."""


class AgentHook:
    """Meets Hook. Making one is collective: every rank attaches before the first step."""

    def __init__(self, runtime: MoeRuntime, setup: AgentSetup) -> None:
        settings = AgentSettings(
            endpoint=setup.endpoint,
            deployment=DeploymentSettings(model=setup.model),
            agree_every=AGREE_EVERY,
            group_timeout_s=_GROUP_TIMEOUT_S,
        )
        self._hook = attach(runtime, settings=settings)

    def before_step(self) -> None:
        """Agree where it is due, and cut over if all are armed."""
        self._hook.before_step()

    def after_step(self, kind: StepKind) -> None:
        """Take note of the time that the step took."""
        self._hook.after_step(_KINDS[kind])

    def state(self) -> HookState:
        """Return what is served and whether an order is held."""
        now = self._hook.state()
        return HookState(epoch=now.epoch, revision=now.revision, is_migrating=now.is_migrating)

    def close(self) -> None:
        """End the agent's threads."""
        self._hook.close()


_GROUP_TIMEOUT_S = 30.0
