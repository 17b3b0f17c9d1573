"""The next window's heat from those before: how far to follow the newest is measured, not set.

Axes    L MoE layers   E logical experts

Heat moves in ratios, so it is followed in logarithms. Of what a new sample differs from the
forecast, part is counting noise, known from the counts themselves, and part is true change; the
gain is the change's part (a scalar Kalman filter per layer, Kalman 1960).
"""

from dataclasses import dataclass

import numpy as np

from eplb_service.domain.ids import FloatArray

FORGETTING = 0.7
"""Of what was known of a layer's change, that remains at each sample."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What is expected of the next window, as shares of a layer's tokens."""

    log_share: FloatArray
    """[L, E]"""
    variance: FloatArray
    """[L, E] of log_share, from counting."""
    change: FloatArray
    """[L] variance by which shares truly change from one sample to the next."""
    gain: FloatArray
    """[L] mean gain of the newest sample, 0 to 1."""

    def heat(self, tokens: FloatArray) -> FloatArray:
        """[L, E] the expected heat, scaled to the layer totals of tokens [L, E]."""
        share = np.exp(self.log_share)
        share /= share.sum(axis=1, keepdims=True)
        return share * tokens.sum(axis=1, keepdims=True)


def first_forecast(tokens: FloatArray) -> Forecast:
    """Begin with one sample: it is all that is known."""
    log_share, variance = _seen(tokens)
    num_layers = len(tokens)
    return Forecast(log_share, variance, np.zeros(num_layers), np.ones(num_layers))


def following(before: Forecast, tokens: FloatArray) -> Forecast:
    """Take in one more sample; a layer without tokens stays as it was.

    tokens    [L, E]
    """
    seen, noise = _seen(tokens)
    off = seen - before.log_share
    # Whatever the squared difference exceeds counting noise of both by is change.
    surplus = (off**2 - noise - before.variance).mean(axis=1)
    change = FORGETTING * before.change + (1 - FORGETTING) * np.maximum(surplus, 0.0)
    expected = before.variance + change[:, None]
    gain = expected / (expected + noise)
    busy = (tokens.sum(axis=1) > 0)[:, None]
    return Forecast(
        np.where(busy, before.log_share + gain * off, before.log_share),
        np.where(busy, (1 - gain) * expected, before.variance),
        np.where(busy[:, 0], change, before.change),
        np.where(busy[:, 0], gain.mean(axis=1), before.gain),
    )


def _seen(tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log share and its variance [L, E]; half a token more keeps silent experts finite."""
    counts = tokens + 0.5
    return np.log(counts / counts.sum(axis=1, keepdims=True)), 1.0 / counts
