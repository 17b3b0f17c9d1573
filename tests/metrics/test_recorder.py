"""What is recorded is what Prometheus reads, under the names of the table and no others."""

import math
import threading

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from eplb_service.domain.metric_names import (
    FROZEN_UNTIL,
    HALTED,
    LAYER_IMBALANCE,
    METRICS,
    PLANNER_FAILURES,
    PLANS,
    Kind,
    Metric,
)
from eplb_service.metrics import PrometheusRecorder


@pytest.fixture
def recorder() -> PrometheusRecorder:
    return PrometheusRecorder()


def text(recorder: PrometheusRecorder) -> str:
    return generate_latest(recorder.registry).decode()


def samples(recorder: PrometheusRecorder) -> list[str]:
    return [line for line in text(recorder).splitlines() if not line.startswith("#")]


def write(recorder: PrometheusRecorder, metric: Metric, labels: tuple[str, ...]) -> None:
    write_one = {
        Kind.GAUGE: recorder.set,
        Kind.COUNTER: recorder.add,
        Kind.HISTOGRAM: recorder.observe,
    }
    write_one[metric.kind](metric, labels, 1.0)


def test_every_metric_of_the_table_is_exposed_as_the_table_says(
    recorder: PrometheusRecorder,
) -> None:
    for metric in METRICS:
        write(recorder, metric, tuple(f"a {label}" for label in metric.labels))
    families = {f.name: f for f in text_string_to_metric_families(text(recorder))}
    assert len(families) == len(METRICS)
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        sample = family.samples[-1]
        name = f"{metric.name}_sum" if metric.kind is Kind.HISTOGRAM else metric.name
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert (sample.name, set(sample.labels)) == (name, set(metric.labels))


def test_names_and_types_are_told_before_the_first_value(recorder: PrometheusRecorder) -> None:
    assert samples(recorder) == []
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind}\n" in text(recorder)


def test_nothing_is_exposed_beside_the_table(recorder: PrometheusRecorder) -> None:
    recorder.add(PLANNER_FAILURES, ["demo"], 3)
    assert samples(recorder) == ['eplb_planner_failures_total{deployment="demo"} 3.0']


def test_a_gauge_keeps_the_newest_value_and_a_counter_the_sum(
    recorder: PrometheusRecorder,
) -> None:
    for value in (4.0, 2.0):
        recorder.set(HALTED, ["demo"], value)
        recorder.add(PLANNER_FAILURES, ["demo"], value)
    assert samples(recorder) == [
        'eplb_planner_failures_total{deployment="demo"} 6.0',
        'eplb_halted{deployment="demo"} 2.0',
    ]


def test_a_forgotten_series_is_absent_and_comes_again(recorder: PrometheusRecorder) -> None:
    recorder.set(LAYER_IMBALANCE, ["demo", "0"], 1.5)
    recorder.set(LAYER_IMBALANCE, ["demo", "1"], 2.5)
    recorder.forget(LAYER_IMBALANCE, ["demo", "0"])
    recorder.forget(LAYER_IMBALANCE, ["demo", "7"])
    assert samples(recorder) == ['eplb_layer_imbalance_ratio{deployment="demo",layer="1"} 2.5']
    recorder.set(LAYER_IMBALANCE, ["demo", "0"], 1.25)
    assert len(samples(recorder)) == 2


def test_large_and_strange_values_are_written_as_prometheus_wants(
    recorder: PrometheusRecorder,
) -> None:
    recorder.set(FROZEN_UNTIL, ['a"b\\c'], math.inf)
    recorder.set(FROZEN_UNTIL, ["now"], 1_764_432_000.25)
    assert samples(recorder) == [
        'eplb_frozen_until_timestamp_seconds{deployment="a\\"b\\\\c"} +Inf',
        'eplb_frozen_until_timestamp_seconds{deployment="now"} 1.76443200025e+09',
    ]


def test_two_recorders_share_nothing(recorder: PrometheusRecorder) -> None:
    recorder.add(PLANNER_FAILURES, ["demo"], 1)
    assert samples(PrometheusRecorder()) == []


@pytest.mark.parametrize("labels", [[], ["demo"], ["demo", "yes", "", "more"]])
def test_labels_must_be_those_of_the_table(recorder: PrometheusRecorder, labels: list[str]) -> None:
    with pytest.raises(AssertionError, match="has the labels"):
        recorder.add(PLANS, labels, 1)


def test_kinds_are_not_mixed_and_counters_never_fall(recorder: PrometheusRecorder) -> None:
    with pytest.raises(AssertionError, match="is no gauge"):
        recorder.set(PLANNER_FAILURES, ["demo"], 1)
    with pytest.raises(AssertionError, match="is no counter"):
        recorder.add(HALTED, ["demo"], 1)
    with pytest.raises(AssertionError, match="cannot go down"):
        recorder.add(PLANNER_FAILURES, ["demo"], -1)


def test_nothing_is_lost_between_threads(recorder: PrometheusRecorder) -> None:
    def count() -> None:
        for _ in range(500):
            recorder.add(PLANNER_FAILURES, ["demo"], 1)
            text(recorder) if _ % 100 == 0 else None

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert samples(recorder) == ['eplb_planner_failures_total{deployment="demo"} 2000.0']
