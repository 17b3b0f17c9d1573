"""Who leads: beats that tell a leader's life, and the standing by for its end.

A leader writes a beat into the store at an interval; one that was fenced learns of it there
even while nothing else is written. One that stands by watches the beats with its own clock, so
no two clocks are ever compared, and takes over when they stop. That beats stopped does not
prove that the leader is dead: what it still does is refused, in the store and at the ranks.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from eplb_service.clock import Clock
from eplb_service.controller.ports import Store
from eplb_service.domain.errors import StoreConflict, StoreUnavailable
from eplb_service.domain.ids import Generation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leading:
    """How leaders are told alive; seconds."""

    beat_s: float = 1.0
    takeover_s: float = 3.0
    """Without a beat for so long one that stands by takes over."""
    is_standby: bool = False
    """Whether to wait for the leader's end, or take over at once."""


async def take_the_lead(store: Store, clock: Clock, leading: Leading) -> Generation:
    """Take over, at once or after the leader's beats have stopped.

    Raises StoreUnavailable where the store is away and it need not stand by.
    """
    if not leading.is_standby:
        return await store.acquire()
    while True:
        seen = await _last_of_the_leader(store, clock, leading)
        try:
            return await store.acquire(seen)
        except (StoreConflict, StoreUnavailable) as slower:
            log.info("stands by on", extra={"because": str(slower)})


async def _last_of_the_leader(store: Store, clock: Clock, leading: Leading) -> Generation:
    """Return the generation that led, once its beats have stopped."""
    last, since_s = None, clock.monotonic_s()
    while True:
        try:
            seen = await store.beats.pulse()
        except StoreUnavailable as away:
            # Who cannot see beats knows nothing of the leader.
            log.warning("store did not answer", extra={"error": str(away)})
            seen, last = None, None
        if seen is None or seen != last:
            last, since_s = seen, clock.monotonic_s()
        elif clock.monotonic_s() - since_s >= leading.takeover_s:
            return seen.generation
        await asyncio.sleep(leading.beat_s / 2)


async def beat(
    store: Store,
    generation: Generation,
    leading: Leading,
    on_fenced: Callable[[StoreConflict], None],
) -> None:
    """Write beat after beat until another controller has taken over."""
    while True:
        try:
            await store.beats.give(generation)
        except StoreConflict as fenced:
            on_fenced(fenced)
            return
        except StoreUnavailable as away:
            # It leads on: as long as nobody reaches the store, nobody takes over.
            log.warning("store did not answer", extra={"error": str(away)})
        await asyncio.sleep(leading.beat_s)
