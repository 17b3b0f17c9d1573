"""How the tokens of a replicated expert fall on its replicas, and what they cost their ranks.

Axes    E logical experts   N ranks   C replicas
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.ids import FloatArray

_Index = TypeVar("_Index", int, npt.NDArray[np.intp])


@dataclass(frozen=True, slots=True)
class Terms:
    """What a rank's load is made of; by default tokens, and replicas alike for every expert."""

    turn: int = 0
    """Replicas by which the shares of one expert are turned against those of the one before."""
    fixed: float = 0.0
    """What an expert with tokens costs its rank beside them, in tokens: reading its weights."""
    speeds: tuple[float, ...] = ()
    """[N] tokens per second of each rank, in any unit; empty where all are alike."""

    def __post_init__(self) -> None:
        """Raises InvalidSettings for a cost below 0 or a speed that is none."""
        if not (np.isfinite(self.fixed) and self.fixed >= 0):
            raise InvalidSettings(f"an expert costs {self.fixed} tokens; expected 0 or more")
        wrong = [n for n, speed in enumerate(self.speeds) if not (np.isfinite(speed) and speed > 0)]
        if wrong:
            raise InvalidSettings(
                f"rank {wrong[0]} has a speed of {self.speeds[wrong[0]]}; expected more than 0"
            )

    def slowness(self, num_ranks: int) -> FloatArray:
        """[N] time of a token on each rank, 1 for the mean speed; raises InvalidTable.

        >>> Terms(speeds=(1.0, 3.0)).slowness(2).round(3).tolist()
        [2.0, 0.667]
        """
        if not self.speeds:
            return np.ones(num_ranks)
        if len(self.speeds) != num_ranks:
            raise InvalidTable(
                f"{len(self.speeds)} speeds given; expected {num_ranks}, one per rank"
            )
        speeds = np.array(self.speeds)
        return speeds.mean() / speeds

    def speed(self, num_ranks: int) -> FloatArray:
        """[N] what each rank bears in the time that one of mean speed needs for 1; as above.

        >>> Terms(speeds=(1.0, 3.0)).speed(2).tolist()
        [0.5, 1.5]
        """
        return 1.0 / self.slowness(num_ranks)

    def turned(self, nth: _Index, expert: int | _Index, count: int | _Index) -> _Index:
        """Return which share of its row the nth replica of an expert takes."""
        return (nth - self.turn * expert) % count if self.turn else nth


PLAIN = Terms()
