"""The forecast follows true change and rests under noise, and tells the two apart by itself."""

import numpy as np
import pytest

from eplb_service.domain.ids import FloatArray
from eplb_service.load.forecast import Forecast, first_forecast, following

DRAW = np.random.default_rng(4)
TRUE = DRAW.dirichlet(np.full(32, 0.5), size=3) + 1e-3


def sampled(share: FloatArray, *, tokens: int) -> FloatArray:
    share = share / share.sum(axis=1, keepdims=True)
    return np.stack([DRAW.multinomial(tokens, row) for row in share]).astype(np.float64)


def followed(samples: list[FloatArray]) -> Forecast:
    found = first_forecast(samples[0])
    for sample in samples[1:]:
        found = following(found, sample)
    return found


def error(heat: FloatArray, share: FloatArray) -> float:
    want = share / share.sum(axis=1, keepdims=True)
    return float(np.abs(heat / heat.sum(axis=1, keepdims=True) - want).sum())


def test_under_noise_alone_it_comes_nearer_to_the_truth_than_the_newest_sample() -> None:
    samples = [sampled(TRUE, tokens=400) for _ in range(12)]
    found = followed(samples)
    assert error(found.heat(samples[-1]), TRUE) < 0.7 * error(samples[-1], TRUE)
    assert (found.gain < 0.5).all()


def test_after_a_shift_it_follows_within_a_few_samples() -> None:
    other = np.roll(TRUE, 7, axis=1)
    samples = [sampled(TRUE, tokens=4000) for _ in range(6)]
    samples += [sampled(other, tokens=4000) for _ in range(3)]
    assert error(followed(samples).heat(samples[-1]), other) < 0.2 * error(samples[0], other)


def test_a_silent_layer_keeps_what_is_known_of_it_and_totals_are_those_of_the_sample() -> None:
    samples = [sampled(TRUE, tokens=400) for _ in range(3)]
    silent = samples[-1].copy()
    silent[1] = 0.0
    before = followed(samples)
    after = following(before, silent)
    assert after.log_share[1].tolist() == before.log_share[1].tolist()
    assert after.heat(silent).sum(axis=1) == pytest.approx([400.0, 0.0, 400.0])
