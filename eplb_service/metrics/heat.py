"""Heat of every expert as Prometheus text, made ready by label once and formatted on demand.

Axes    L MoE layers   E logical experts
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

import numpy as np

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.metric_names import EXPERT_TOKENS, LAYER_HEAT, LAYER_RANK_LOAD, Metric

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
        self._newest: dict[str, tuple[FloatArray, FloatArray]] = {}
        self._prefixes: dict[str, _Prefixes] = {}
        self._lock = Lock()

    def keep(self, deployment: str, tokens: FloatArray, load: FloatArray) -> None:
        """Take a deployment's newest heat [L, E] and load [L, N]; neither is written to any more.

        load    NaN for unknown ranks
        """
        self._newest[deployment] = (tokens, load)

    def text(self) -> bytes:
        """The page as of now. One caller at a time formats it."""
        with self._lock:
            newest = sorted(self._newest.items())
            lines = [*_head(EXPERT_TOKENS)]
            for deployment, (tokens, _) in newest:
                lines += self._expert_lines(deployment, tokens)
            lines += _head(LAYER_HEAT)
            for deployment, (tokens, _) in newest:
                lines += self._layer_lines(deployment, tokens)
            lines += _head(LAYER_RANK_LOAD)
            for deployment, (_, load) in newest:
                lines += _rank_lines(deployment, load)
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


def _rank_lines(deployment: str, load: FloatArray) -> Iterator[str]:
    """Load over the mean of the known ranks; none for layers without load and unknown ranks."""
    begin = _begin(LAYER_RANK_LOAD, deployment)
    known = ~np.isnan(load)
    mean = np.where(known, load, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    for layer, rank in np.argwhere(known & (mean > 0)[:, None]).tolist():
        yield f'{begin}{layer}",rank="{rank}"}} {load[layer, rank] / mean[layer]:.6g}'


def _head(metric: Metric) -> tuple[str, str]:
    return f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"


def _prefixes(deployment: str, shape: tuple[int, ...]) -> _Prefixes:
    of_experts, of_layers = _begin(EXPERT_TOKENS, deployment), _begin(LAYER_HEAT, deployment)
    layers, experts = shape
    return _Prefixes(
        shape,
        tuple(
            f'{of_experts}{layer}",expert="{expert}"}} '
            for layer in range(layers)
            for expert in range(experts)
        ),
        tuple(
            f'{of_layers}{layer}",quantile="{quantile:g}"}} '
            for layer in range(layers)
            for quantile in QUANTILES
        ),
    )


def _begin(metric: Metric, deployment: str) -> str:
    escaped = deployment.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{metric.name}{{deployment="{escaped}",layer="'
