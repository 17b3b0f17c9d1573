"""What a rank says of itself."""

from dataclasses import dataclass, replace

from eplb_service.domain.deployment import DeploymentIdentity, ModelShape
from eplb_service.domain.ids import Incarnation
from eplb_service.protocol.messages import Hello
from worker_agent.agent.checks import Limits
from worker_agent.applier.desk import Snapshot


@dataclass(frozen=True, slots=True)
class Introduction:
    """Constant for one incarnation."""

    identity: DeploymentIdentity
    shape: ModelShape
    incarnation: Incarnation
    limits: Limits

    def hello(self, now: Snapshot, *, is_idle: bool) -> Hello:
        """Return the first word of a stream."""
        return Hello(
            identity=self.identity,
            shape=self.shape,
            profile=self.limits.profile,
            incarnation=self.incarnation,
            placement=now.placement,
            status=replace(now.status, is_idle=is_idle),
            generation_seen=now.generation_seen,
        )
