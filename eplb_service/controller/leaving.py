"""The end of a controller that was told to end: what runs is finished, or given up.

Serving does not depend on it. But a wave that is over needs nobody to take it up, and no rank
keeps staged weights for one that will not be cut over.
"""

import asyncio
import logging

from eplb_service.clock import Clock
from eplb_service.controller.deployment import Deployment
from eplb_service.controller.machine_state import GiveUpAsked, StopAsked
from eplb_service.controller.registry import Registry

log = logging.getLogger(__name__)

LOOK_S = 0.1
LAST_WORDS_S = 2.0
"""How long ranks' answers to a withdrawal are waited for; whoever leads next hears them else."""
REASON = "the controller was told to end"


async def leave(registry: Registry, clock: Clock, *, finish_s: float) -> bool:
    """End every plan after its running wave; waves that are not over by then are withdrawn.

    finish_s    seconds that running waves are given

    Returns whether nothing is left in flight. A wave that may have been cut over is never
    withdrawn: it is left to whoever leads next.
    """
    give_up_at_s = clock.monotonic_s() + finish_s
    while busy := [deployment for deployment in registry.all() if _is_busy(deployment)]:
        late_s = clock.monotonic_s() - give_up_at_s
        if late_s >= LAST_WORDS_S:
            names = [deployment.name for deployment in busy]
            log.warning("waves left in flight", extra={"deployments": names})
            return False
        for deployment in busy:
            _hurry(deployment, is_late=late_s >= 0)
        await asyncio.sleep(LOOK_S)
    return True


def _is_busy(deployment: Deployment) -> bool:
    state = deployment.driver.state
    return bool(state.run or state.flight or state.spending)


def _hurry(deployment: Deployment, *, is_late: bool) -> None:
    driver = deployment.driver
    if is_late:
        driver.offer(GiveUpAsked(REASON))
    elif driver.state.run and not driver.state.run.stopping:
        driver.offer(StopAsked(driver.state.run.plan.plan_id, REASON))
