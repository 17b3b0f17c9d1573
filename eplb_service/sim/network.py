"""Streams between every rank and every controller that lose, delay, repeat and reorder."""

from dataclasses import dataclass
from random import Random

from eplb_service.domain.ids import Incarnation
from eplb_service.protocol.messages import Hello, ToMachine, Word

NUM_KEPT = 24
NUM_WAITING = 80


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """One word on its way, on the stream of one rank with one controller."""

    controller: int
    rank: int
    incarnation: Incarnation
    """Of the rank's stream; words down carry their own."""
    is_up: bool
    word: Hello | Word | ToMachine


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances, 0 to 1, of what befalls a letter that is taken."""

    lost: float
    repeated: float
    """A copy is kept and arrives again, perhaps much later."""
    old: float
    """An old copy is taken instead of a waiting letter."""


FAIR = Weather(lost=0.0, repeated=0.0, old=0.0)


class Network:
    """All letters that are on their way. Which one arrives next is chance: it reorders."""

    def __init__(self, rng: Random, weather: Weather) -> None:
        self._rng = rng
        self._weather = weather
        self._waiting: list[Letter] = []
        self._kept: list[Letter] = []
        self.severed: set[tuple[int, int]] = set()
        """Controller and rank between which nothing passes."""
        self.broken: list[tuple[int, int]] = []
        """Controller and rank whose stream broke; the rank will open a new one."""

    @property
    def num_waiting(self) -> int:
        """Letters that have not arrived."""
        return len(self._waiting)

    def send(self, letter: Letter) -> None:
        """Put a letter on its way."""
        if (letter.controller, letter.rank) in self.severed:
            return
        self._waiting.append(letter)
        if self._weather is not FAIR and len(self._waiting) > NUM_WAITING:
            self._take_any(self._waiting)

    def take(self) -> Letter | None:
        """Return the letter that arrives next; None where none does."""
        rng, weather = self._rng, self._weather
        if self._kept and rng.random() < weather.old:
            return self._kept[rng.randrange(len(self._kept))]
        if not self._waiting:
            return None
        letter = self._take_any(self._waiting)
        if rng.random() < weather.lost:
            return None
        if rng.random() < weather.repeated:
            self._kept.append(letter)
            if len(self._kept) > NUM_KEPT:
                self._take_any(self._kept)
        return letter

    def sever(self, pair: tuple[int, int]) -> None:
        """Let nothing more pass between a controller and a rank."""
        self.severed.add(pair)

    def mend(self) -> None:
        """End every partition; the ranks open new streams."""
        self.broken += sorted(self.severed)
        self.severed.clear()

    def heal(self) -> None:
        """No more faults: what is on its way arrives, old copies included, each once."""
        self._waiting.extend(self._kept)
        self._kept = []
        self._weather = FAIR
        self.mend()

    def _take_any(self, letters: list[Letter]) -> Letter:
        at = self._rng.randrange(len(letters))
        letters[at], letters[-1] = letters[-1], letters[at]
        return letters.pop()
