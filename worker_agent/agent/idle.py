"""Whether the group stands still."""

from eplb_service.clock import Clock
from eplb_service.protocol.messages import Idle
from worker_agent.agent.pace import Pace
from worker_agent.applier.desk import Desk
from worker_agent.ports.channel import Stream


class IdleWatch:
    """Watches the count of steps, and tells when it stops growing and when it grows again."""

    def __init__(self, desk: Desk, clock: Clock, pace: Pace) -> None:
        self._desk = desk
        self._clock = clock
        self._after_s = pace.idle_after_s
        self._steps = desk.steps_begun
        self._moved_at_s = clock.monotonic_s()
        self.is_idle = False

    def tell(self, stream: Stream) -> bool:
        """Look, and send Idle if that changed; False if the stream had no room for it."""
        now_s, steps = self._clock.monotonic_s(), self._desk.steps_begun
        if steps != self._steps:
            self._steps, self._moved_at_s = steps, now_s
        is_idle = now_s - self._moved_at_s >= self._after_s
        if is_idle == self.is_idle:
            return True
        self._desk.is_step_awaited = is_idle
        if not stream.send(Idle(is_idle, max(0, steps - 1))):
            return False
        self.is_idle = is_idle
        return True
