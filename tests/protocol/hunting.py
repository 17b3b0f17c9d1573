"""Seeds without a safeguard, until one is noticed to break an invariant."""

from dataclasses import dataclass
from random import Random

import pytest

from eplb_service.sim.chaos import simulate
from eplb_service.sim.story import Violation
from tests.protocol.mutations import Mutate

NUM_SEEDS = 400
"""Seeds within which each is caught."""


@dataclass(frozen=True, slots=True)
class Caught:
    """What noticed a mutation."""

    seed: int
    by: str
    """Last line of the transcript."""


def hunt(mutate: Mutate, num_seeds: int = NUM_SEEDS) -> Caught | None:
    """Run seeds without a safeguard until one breaks an invariant; None where none does."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for seed in range(num_seeds):
            try:
                simulate(Random(seed))
            except Violation as broken:
                return Caught(seed, str(broken).splitlines()[-1])
    return None
