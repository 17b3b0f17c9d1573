"""The controller's figures in a Prometheus registry of their own, by the one table of names."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from eplb_service.domain.ids import FloatArray
from eplb_service.domain.metric_names import METRICS, Kind, Metric
from eplb_service.metrics.heat import HeatPage

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
Labels = tuple[str, ...]


class _Histogram:
    """One histogram's counts, by the first bucket that holds a value; the last is infinite."""

    __slots__ = ("counts", "total")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * (num_buckets + 1)
        self.total = 0.0

    def cumulative(self, bounds: Sequence[float]) -> list[tuple[str, float]]:
        """Pairs of upper bound and number of values up to it."""
        so_far, out = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(str, bounds), "+Inf"], self.counts, strict=True):
            so_far += count
            out.append((bound, float(so_far)))
        return out


class PrometheusRecorder(Collector):
    """Keeps the newest value of every series; any thread may write or collect.

    A figure outside the table, or with labels that are not the table's, is a mistake
    of ours and asserts.
    """

    def __init__(self) -> None:
        self._series: dict[Metric, dict[Labels, float]] = {
            metric: {} for metric in METRICS if metric.kind is not Kind.HISTOGRAM
        }
        self._histograms: dict[Metric, dict[Labels, _Histogram]] = {
            metric: {} for metric in METRICS if metric.kind is Kind.HISTOGRAM
        }
        self._lock = Lock()
        self.heat = HeatPage()
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

    def observe(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Count one value of a histogram."""
        assert metric.kind is Kind.HISTOGRAM, f"{metric.name} is no histogram"
        key = _key(metric, labels)
        with self._lock:
            series = self._histograms[metric]
            if key not in series:
                series[key] = _Histogram(len(metric.buckets))
            series[key].counts[bisect_left(metric.buckets, value)] += 1
            series[key].total += value

    def forget(self, metric: Metric, labels: Sequence[str]) -> None:
        """Drop one series; one that is not there is no matter."""
        with self._lock:
            self._series[metric].pop(_key(metric, labels), None)

    def keep_heat(self, deployment: str, tokens: FloatArray, load: FloatArray) -> None:
        """Keep the newest heat [L, E] and load [L, N]; nothing is formatted yet."""
        self.heat.keep(deployment, tokens, load)

    def collect(self) -> Iterator[Family]:
        """Yield every family of the table, in its order, with the values of one moment."""
        with self._lock:
            families = [self._family(metric) for metric in METRICS]
        yield from families

    def _family(self, metric: Metric) -> Family:
        if metric.kind is Kind.HISTOGRAM:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, found in sorted(self._histograms[metric].items()):
                family.add_metric(labels, found.cumulative(metric.buckets), found.total)
            return family
        make = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels)
        for labels, value in sorted(self._series[metric].items()):
            family.add_metric(labels, value)
        return family


def _key(metric: Metric, labels: Sequence[str]) -> Labels:
    assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
    return tuple(labels)
