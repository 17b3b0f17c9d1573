"""Compares the output of every step with the float64 reference, in the time between steps.

Axes    T tokens   D model width
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from benchmarks.demo.records import Checked
from moe_runtime.runtime import Batch, DenseReference

__all__ = ["TOLERANCE", "Checker"]

TOLERANCE = 1e-5
"""Largest error that rounding may make, relative to a token's largest output."""
_MOST_WAITING = 300
"""Steps kept at most; beyond that the oldest is checked although there is no time."""
_FORGET = 0.9
"""How much of what a check was expected to take is believed at the next."""


@dataclass(frozen=True, slots=True, eq=False)
class _Served:
    step: int
    batch: Batch
    output: Tensor


class Checker:
    """Keeps what was served until there is time to look at it; nothing is ever left out."""

    def __init__(self, reference: DenseReference, clock: Callable[[], float]) -> None:
        self._reference = reference
        self._clock = clock
        self._waiting: deque[_Served] = deque()
        self._seconds_per_token = 0.0

    def served(self, step: int, batch: Batch, y_TD: Tensor) -> None:
        """Keep one step's input and output."""
        self._waiting.append(_Served(step, batch, y_TD))

    def check_until(self, deadline_s: float) -> list[Checked]:
        """Check kept steps, oldest first, as long as the next is expected to fit."""
        done: list[Checked] = []
        while self._waiting:
            num_tokens = self._waiting[0].batch.x_TD.shape[0]
            started = self._clock()
            expected_s = self._seconds_per_token * num_tokens
            if started + expected_s > deadline_s and len(self._waiting) < _MOST_WAITING:
                self._seconds_per_token *= _FORGET  # one slow check must not end all checking
                break
            done.append(self._check(self._waiting.popleft()))
            if num_tokens:
                took = (self._clock() - started) / num_tokens
                self._seconds_per_token = max(took, _FORGET * self._seconds_per_token)
        return done

    def check_rest(self) -> Iterator[Checked]:
        """Check all kept steps, oldest first, and yield each as it is done."""
        while self._waiting:
            yield self._check(self._waiting.popleft())

    def _check(self, served: _Served) -> Checked:
        if not served.batch.x_TD.shape[0]:
            return Checked(served.step, 0.0)
        want_TD = self._reference.forward(served.batch.x_TD, served.batch.router)
        off_T = (served.output - want_TD).abs().amax(dim=1) / want_TD.abs().amax(dim=1)
        return Checked(served.step, float(off_T.max()))
