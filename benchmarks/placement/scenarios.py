"""Seeded loads: steady, drift, burst, shift and zipf.

A layer's heat is lognormal with one to three hot experts, or Zipf; four text domains vary it,
and a mixture of them is what arrives. The noise of a stage is gamma, its tokens are Poisson.
Spreads follow expert counts published for DeepSeek-V3. The draws come in one fixed order, so a
seed gives the same load everywhere; tests hold checksums.

Axes    T stages of a window   L MoE layers   E logical experts   N ranks   K domains
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from benchmarks.placement.shapes import Shape

__all__ = ["NUM_STAGES", "CountArray", "Scenario", "by_source", "source_weights", "windows"]

CountArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NUM_STAGES = 8
NUM_DOMAINS = 4
TOKENS_PER_RANK = 128
"""Of one stage."""
SOURCE_EVENNESS = 50.0
"""Of the Dirichlet weights by which ranks send; higher is more even."""
_SOURCES = 6
"""Tells the draws of sources from those of the scenarios, which use 1 to 5."""


class Scenario(IntEnum):
    """What changes from window to window; the number is part of the seed."""

    STEADY = 1
    DRIFT = 2
    BURST = 3
    SHIFT = 4
    ZIPF = 5


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """What one scenario draws from."""

    scenario: Scenario
    shape: Shape
    rng: np.random.Generator
    domains: FloatArray
    """[K, L, E] log heat of each domain."""


def windows(
    scenario: Scenario, shape: Shape, *, seed: int, num_windows: int
) -> Iterator[CountArray]:
    """Yield tokens [T, L, E] of each window, never 0."""
    size = shape.num_layers, shape.num_experts
    rng = np.random.default_rng([seed, *size, int(scenario)])
    core = _zipf(rng, size) if scenario is Scenario.ZIPF else _lognormal(rng, size)
    domains = np.stack([core + 0.35 * rng.standard_normal(size) for _ in range(NUM_DOMAINS)])
    traffic = _Traffic(scenario, shape, rng, domains)
    mixture = rng.dirichlet(np.full(NUM_DOMAINS, 2.0))
    wander = np.zeros(size)
    for window in range(num_windows):
        if scenario is Scenario.SHIFT:
            mixture = np.eye(NUM_DOMAINS)[0 if window < num_windows // 2 else 1]
        elif scenario is not Scenario.STEADY:
            mixture = 0.7 * mixture + 0.3 * rng.dirichlet(np.ones(NUM_DOMAINS))
        if scenario in {Scenario.DRIFT, Scenario.BURST, Scenario.ZIPF}:
            wander = 0.9 * wander + 0.08 * rng.standard_normal(size)
        yield _window(traffic, mixture, wander)


def _lognormal(rng: np.random.Generator, size: tuple[int, int]) -> FloatArray:
    """[L, E] log heat of a spread of its own in each layer, and a few hot experts."""
    heat = rng.uniform(0.45, 0.95, (size[0], 1)) * rng.standard_normal(size)
    for layer in range(size[0]):
        num_hot = int(rng.integers(1, 4))
        hot = rng.choice(size[1], num_hot, replace=False)
        heat[layer, hot] += rng.uniform(0.5, 1.3, num_hot)
    return heat


def _zipf(rng: np.random.Generator, size: tuple[int, int]) -> FloatArray:
    """[L, E] log heat that falls as 1 / rank of an expert, in an order of each layer's own."""
    weights = 1.0 / np.arange(1, size[1] + 1)
    return np.stack([np.log(weights[rng.permutation(size[1])]) for _ in range(size[0])])


def _window(traffic: _Traffic, mixture: FloatArray, wander: FloatArray) -> CountArray:
    rng = traffic.rng
    heat: FloatArray = np.einsum("k,kle->le", mixture, np.exp(traffic.domains)) * np.exp(wander)
    if traffic.scenario is Scenario.BURST:
        _burst(rng, heat)
    heat /= heat.sum(axis=1, keepdims=True)
    tokens = TOKENS_PER_RANK * traffic.shape.num_ranks * traffic.shape.top_k
    stages: list[CountArray] = []
    for _ in range(NUM_STAGES):
        noisy: FloatArray = heat * rng.gamma(100.0, 1 / 100.0, size=heat.shape)
        noisy /= noisy.sum(axis=1, keepdims=True)
        stages.append(rng.poisson(noisy * tokens) + 1)
    return np.stack(stages)


def _burst(rng: np.random.Generator, heat: FloatArray) -> None:
    """Make one to three experts of some layers hot for this window."""
    for layer in range(len(heat)):
        if rng.random() < 0.3:
            hot = rng.choice(heat.shape[1], rng.integers(1, 4), replace=False)
            heat[layer, hot] *= rng.uniform(3, 8, hot.size)


def source_weights(num_ranks: int, *, seed: int) -> FloatArray:
    """[N] share of all tokens that each rank sends, in every layer and window of a run."""
    rng = np.random.default_rng([seed, num_ranks, _SOURCES])
    return rng.dirichlet(np.full(num_ranks, SOURCE_EVENNESS))


def by_source(tokens: CountArray, weights: FloatArray, *, seed: int, window: int) -> FloatArray:
    """[N, L, E] the tokens [L, E] of one window, by the rank that sends them.

    Stages are taken together: the sum of their multinomial draws is one multinomial draw.
    """
    rng = np.random.default_rng([seed, len(weights), _SOURCES, window])
    return np.moveaxis(rng.multinomial(tokens, weights), -1, 0).astype(np.float64)
