"""Streams as gRPC gives them: in order or broken, one per rank and controller.

A stream that breaks takes with it what is on its way, both ways; the rank opens a new
one with a Hello. Which stream's next word arrives next is chance.
"""

from collections import deque
from random import Random

from eplb_service.protocol.messages import Hello
from eplb_service.sim.network import FAIR, Letter, Network, Weather

NUM_QUEUED = 40
"""Words that one direction of a stream holds; more close it, as a full outbox does."""

Lane = tuple[int, int, bool]
"""Controller, rank, whether it leads up."""


class Streams(Network):
    """All streams, and the words on their way."""

    def __init__(self, rng: Random, weather: Weather) -> None:
        super().__init__(rng, weather)
        self._lanes: dict[Lane, deque[Letter]] = {}

    @property
    def num_waiting(self) -> int:
        """Letters that have not arrived."""
        return sum(map(len, self._lanes.values()))

    def send(self, letter: Letter) -> None:
        """Put a letter on its way; a Hello opens a new stream in the place of an older one."""
        pair = (letter.controller, letter.rank)
        if pair in self.severed:
            return
        if isinstance(letter.word, Hello):
            self._clear(pair)
        lane = self._lanes.setdefault((*pair, letter.is_up), deque())
        lane.append(letter)
        if self._weather is not FAIR and len(lane) > NUM_QUEUED:
            self._break(pair)

    def take(self) -> Letter | None:
        """Return the letter that arrives next; None where none does, or its stream broke."""
        rng = self._rng
        busy = [name for name, lane in self._lanes.items() if lane]
        if not busy:
            return None
        name = rng.choice(busy)
        if rng.random() < self._weather.lost:
            self._break(name[:2])
            return None
        return self._lanes[name].popleft()

    def sever(self, pair: tuple[int, int]) -> None:
        """Break a stream; no new one comes about until it is mended."""
        super().sever(pair)
        self._clear(pair)

    def _break(self, pair: tuple[int, int]) -> None:
        self._clear(pair)
        self.broken.append(pair)

    def _clear(self, pair: tuple[int, int]) -> None:
        for is_up in (False, True):
            self._lanes.pop((*pair, is_up), None)
