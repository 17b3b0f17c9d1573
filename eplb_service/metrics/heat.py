"""Heat of every expert as Prometheus text, made ready by label once and formatted on demand.

Axes    L MoE layers   E logical experts
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.metric_names import EXPERT_TOKENS, LAYER_HEAT, Metric

QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """Every line up to its value, which never changes for one shape."""

    shape: tuple[int, ...]
    experts: tuple[str, ...]
    layers: tuple[str, ...]


class HeatPage:
    """Any thread may keep heat or ask for the page; keeping it costs one assignment."""

    def __init__(self) -> None:
        self._tokens: dict[str, FloatArray] = {}
        self._prefixes: dict[str, _Prefixes] = {}
        self._lock = Lock()

    def keep(self, deployment: str, tokens: FloatArray) -> None:
        """Take the newest heat [L, E] of a deployment; it must not be written to any more."""
        self._tokens[deployment] = tokens

    def text(self) -> bytes:
        """The page as of now. One caller at a time formats it."""
        with self._lock:
            newest = sorted(self._tokens.items())
            lines = [*_head(EXPERT_TOKENS)]
            for deployment, tokens in newest:
                lines += self._expert_lines(deployment, tokens)
            lines += _head(LAYER_HEAT)
            for deployment, tokens in newest:
                lines += self._layer_lines(deployment, tokens)
        return ("\n".join(lines) + "\n").encode()

    def _expert_lines(self, deployment: str, tokens: FloatArray) -> Iterator[str]:
        prefixes = self._of(deployment, tokens.shape).experts
        values = np.rint(tokens).astype(np.int64).ravel().tolist()
        return map("%s%d".__mod__, zip(prefixes, values, strict=True))

    def _layer_lines(self, deployment: str, tokens: FloatArray) -> Iterator[str]:
        prefixes = self._of(deployment, tokens.shape).layers
        mean = tokens.mean(axis=1)
        quantiles = np.quantile(tokens, QUANTILES, axis=1).T
        values = np.where(mean[:, None] > 0, quantiles / np.maximum(mean, 1e-9)[:, None], np.nan)
        return map("%s%.6g".__mod__, zip(prefixes, values.ravel().tolist(), strict=True))

    def _of(self, deployment: str, shape: tuple[int, ...]) -> _Prefixes:
        known = self._prefixes.get(deployment)
        if known is None or known.shape != shape:
            known = self._prefixes[deployment] = _prefixes(deployment, shape)
        return known


def _head(metric: Metric) -> tuple[str, str]:
    return f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"


def _prefixes(deployment: str, shape: tuple[int, ...]) -> _Prefixes:
    escaped = deployment.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    begin = f'{{deployment="{escaped}",layer="'
    layers, experts = shape
    return _Prefixes(
        shape,
        tuple(
            f'{EXPERT_TOKENS.name}{begin}{layer}",expert="{expert}"}} '
            for layer in range(layers)
            for expert in range(experts)
        ),
        tuple(
            f'{LAYER_HEAT.name}{begin}{layer}",quantile="{quantile:g}"}} '
            for layer in range(layers)
            for quantile in QUANTILES
        ),
    )
