"""Every expert's heat, on request: the text that Prometheus reads, from the newest heat."""

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from eplb_service.domain.ids import FloatArray
from eplb_service.metrics.heat import HeatPage

LOAD = np.array([[1.0, 3.0], [2.0, 2.0]])


def samples(page: HeatPage) -> dict[tuple[str, ...], float]:
    text = page.text().decode()
    return {
        (sample.name, *(sample.labels[k] for k in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def tokens() -> FloatArray:
    return np.array([[0.0, 10.0, 20.0, 70.0], [0.0, 0.0, 0.0, 0.0]])


def test_every_expert_has_its_tokens_and_every_layer_its_quantiles(tokens: FloatArray) -> None:
    page = HeatPage()
    page.keep('a"b\\c', tokens, np.array([[30.0, np.nan, 50.0], [0.0, 0.0, 0.0]]))
    found = samples(page)
    assert found["eplb_expert_tokens", 'a"b\\c', "3", "0"] == 70
    assert found["eplb_layer_heat_ratio", 'a"b\\c', "0", "1"] == pytest.approx(70 / 25)
    assert found["eplb_layer_heat_ratio", 'a"b\\c', "0", "0.5"] == pytest.approx(15 / 25)
    assert np.isnan(found["eplb_layer_heat_ratio", 'a"b\\c', "1", "1"])
    loads = {key[2:]: value for key, value in found.items() if "rank" in key[0]}
    assert loads == {("0", "0"): 0.75, ("0", "2"): 1.25}
    assert len(found) == 2 * 4 + 2 * 4 + 2


def test_the_newest_heat_counts_also_in_another_shape(tokens: FloatArray) -> None:
    page = HeatPage()
    page.keep("d", tokens, LOAD)
    page.text()
    page.keep("d", np.array([[1.0, 2.0]]), LOAD[:1])
    assert samples(page)["eplb_expert_tokens", "d", "1", "0"] == 2
    assert len(samples(page)) == 2 + 4 + 2


def test_types_are_told_before_any_heat() -> None:
    assert "# TYPE eplb_expert_tokens gauge\n" in HeatPage().text().decode()
