"""Ranks that were refused at their Hello: a refused rank asks again and again, and says nothing.

What is refused is told once in the log, and to operators for as long as the rank keeps asking.
"""

import logging
from dataclasses import dataclass

from eplb_service.clock import Clock
from eplb_service.controller.views import RefusalView
from eplb_service.domain.errors import EplbError
from eplb_service.protocol.messages import Hello

log = logging.getLogger(__name__)

MOST_KEPT = 256
"""Beyond them the one that asked longest ago goes."""
KEPT_S = 600.0
"""How long a refusal is told of after the rank last asked; agents ask every few seconds."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    at_s: float


class Refusals:
    """The newest refusal of each rank that was not taken in since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, int], _Refusal] = {}

    def add(self, hello: Hello, refused: EplbError) -> None:
        """Keep why a rank was refused, and log it unless it was refused so before."""
        key, why = _key(hello), str(refused)
        before = self._kept.pop(key, None)
        self._kept[key] = _Refusal(why, self._clock.monotonic_s())
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        if before is None or before.why != why:
            deployment, rank = key
            fields = {"deployment": deployment, "rank": rank, "code": refused.code, "text": why}
            log.warning("registration refused", extra=fields)

    def lift(self, hello: Hello) -> None:
        """Forget a rank that was taken in."""
        self._kept.pop(_key(hello), None)

    def told(self, deployment: str) -> tuple[RefusalView, ...]:
        """Every rank that still asks, of the deployment named or, where it is empty, of all."""
        now_s = self._clock.monotonic_s()
        return tuple(
            RefusalView(name, rank, refusal.why, now_s - refusal.at_s)
            for (name, rank), refusal in sorted(self._kept.items(), key=lambda item: item[0])
            if deployment in ("", name) and now_s - refusal.at_s < KEPT_S
        )


def _key(hello: Hello) -> tuple[str, int]:
    return hello.identity.name, hello.profile.rank
