"""What every rank is asked to serve at every step: domain after domain, on a fixed schedule.

Axes    L MoE layers   E experts   T tokens of one rank and step   D model width

Everything is a function of the seed, the rank and the step, so two runs serve
the same tokens and anyone can compute again what a rank was given.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.counts import TOP_K, domain_counts
from benchmarks.sampling import draw_experts, inclusion, logits_for
from moe_runtime.runtime import Batch, ByLogits, Phase, Step, StepKind

__all__ = ["Schedule", "Traffic"]

_CYCLE = 8
"""Steps from one prefill-like step to the next."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which domain, phase and number of tokens each step has."""

    domains: tuple[str, ...]
    steps_per_domain: int
    interval_s: float
    """From the start of one step to the start of the next."""
    prefill_tokens: int = 48
    """Of each rank in a prefill-like step."""
    decode_tokens: int = 16
    """Of each rank in a decode-like step."""

    @property
    def num_steps(self) -> int:
        """Steps of all domains, once."""
        return len(self.domains) * self.steps_per_domain

    def domain(self, step: int) -> str:
        """Return the domain whose texts arrive at a step; after the last the first comes again."""
        return self.domains[step // self.steps_per_domain % len(self.domains)]

    def phase(self, step: int) -> Phase:
        """Return what the ranks that have work do at a step."""
        return Phase.PREFILL if step % _CYCLE == _CYCLE - 1 else Phase.DECODE

    def num_tokens(self, step: int, rank: int) -> int:
        """Return how many tokens a rank has; 0 is an idle rank, which takes a dummy step.

        Every rank is idle at one step of 2 * _CYCLE, never in a prefill-like one, so over a
        cycle all ranks bring equally many tokens.
        """
        if (step + 2 * rank) % (2 * _CYCLE) == 0:
            return 0
        prefill = self.phase(step) is Phase.PREFILL
        return self.prefill_tokens if prefill else self.decode_tokens


class Traffic:
    """The tokens of one schedule."""

    def __init__(self, schedule: Schedule, *, width: int, seed: int) -> None:
        self.schedule = schedule
        self._width = width
        self._seed = seed
        self._probabilities = {
            domain: [inclusion(row, top_k=TOP_K) for row in domain_counts(domain)]
            for domain in set(schedule.domains)
        }

    def batch(self, step: int, rank: int) -> Batch:
        """Return what a rank brings to a step."""
        num_tokens = self.schedule.num_tokens(step, rank)
        phase = self.schedule.phase(step)
        if not num_tokens:
            return Batch.dummy(self._width, phase=phase)
        draw = np.random.default_rng((self._seed, step, rank))
        x_TD = draw.standard_normal((num_tokens, self._width), dtype=np.float32)
        logits_LTE = np.stack(
            [
                self._logits(probabilities_E, num_tokens, draw)
                for probabilities_E in self._probabilities[self.schedule.domain(step)]
            ]
        )
        router = ByLogits(torch.tensor(logits_LTE))
        return Batch.of(torch.tensor(x_TD), router, Step(StepKind.REAL, phase))

    @staticmethod
    def _logits(
        probabilities_E: npt.NDArray[np.float64], num_tokens: int, draw: np.random.Generator
    ) -> npt.NDArray[np.float32]:
        experts_TK = draw_experts(probabilities_E, num_tokens=num_tokens, draw=draw)
        return logits_for(experts_TK, num_experts=len(probabilities_E), draw=draw)
