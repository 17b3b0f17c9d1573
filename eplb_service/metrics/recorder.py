"""The controller's figures in a Prometheus registry of their own, by the one table of names."""

from collections.abc import Iterator, Sequence
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from eplb_service.domain.metric_names import METRICS, Kind, Metric

Family = GaugeMetricFamily | CounterMetricFamily


class PrometheusRecorder(Collector):
    """Keeps the newest value of every series; any thread may write or collect.

    A figure outside the table, or with labels that are not the table's, is a mistake
    of ours and asserts.
    """

    def __init__(self) -> None:
        self._series: dict[Metric, dict[tuple[str, ...], float]] = {m: {} for m in METRICS}
        self._lock = Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def set(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Set a gauge."""
        assert metric.kind is Kind.GAUGE, f"{metric.name} is no gauge"
        with self._lock:
            self._series[metric][_key(metric, labels)] = value

    def add(self, metric: Metric, labels: Sequence[str], amount: float) -> None:
        """Add to a counter; adding 0 makes its series appear."""
        assert metric.kind is Kind.COUNTER, f"{metric.name} is no counter"
        assert amount >= 0, f"{metric.name} cannot go down by {-amount}"
        key = _key(metric, labels)
        with self._lock:
            series = self._series[metric]
            series[key] = series.get(key, 0.0) + amount

    def forget(self, metric: Metric, labels: Sequence[str]) -> None:
        """Drop one series; one that is not there is no matter."""
        with self._lock:
            self._series[metric].pop(_key(metric, labels), None)

    def collect(self) -> Iterator[Family]:
        """Yield every family of the table, in its order, with the values of one moment."""
        with self._lock:
            moment = {metric: dict(series) for metric, series in self._series.items()}
        for metric, series in moment.items():
            make = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
            family = make(metric.name, metric.help, labels=metric.labels)
            for labels, value in sorted(series.items()):
                family.add_metric(labels, value)
            yield family


def _key(metric: Metric, labels: Sequence[str]) -> tuple[str, ...]:
    assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
    return tuple(labels)
