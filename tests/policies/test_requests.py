"""A policy is only asked what can be answered."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eplb_service.controller.planning import draft
from eplb_service.domain.errors import EplbError, InvalidRequest, InvalidSettings, InvalidTable
from eplb_service.policies.bounds import Topology
from eplb_service.policies.request import PolicyRequest, even_split
from tests.planning.tasks import by_policy, layers_of, task_of

SQUARE = layers_of([[0, 1], [2, 3]], [[0, 1], [2, 3]], num_experts=4)
ASKED = PolicyRequest(np.ones((2, 4)), SQUARE, even_split(2), layers=(0, 1))

Change = Callable[[PolicyRequest], PolicyRequest]
REFUSALS: list[tuple[Change, type[EplbError], str]] = [
    (lambda r: replace(r, heat=np.ones((2, 3))), InvalidTable, r"heat has shape \[2, 3\]"),
    (lambda r: replace(r, heat=np.ones((2, 5))), InvalidTable, r"expected \[2, 4\]"),
    (lambda r: replace(r, heat=np.ones((3, 4))), InvalidTable, r"heat has shape \[3, 4\]"),
    (lambda r: replace(r, split=even_split(3)), InvalidTable, r"split has shape \[4, 3\]"),
    (lambda r: replace(r, topology=Topology(("a",))), InvalidTable, "1 nodes named; expected 2"),
    (lambda r: replace(r, layers=(0, 2)), InvalidRequest, "layer 2 does not exist; .* 0 to 1"),
    (lambda r: replace(r, layers=(-1,)), InvalidRequest, "layer -1 does not exist"),
    (lambda r: replace(r, layers=(1, 1)), InvalidRequest, "layer 1 is named twice"),
    (lambda r: replace(r, max_moves=-1), InvalidSettings, "-1 moves; expected 0 or more"),
]


@pytest.mark.parametrize(("change", "error", "says"), REFUSALS)
def test_a_request_that_makes_no_sense_is_refused(
    change: Change, error: type[EplbError], says: str
) -> None:
    with pytest.raises(error, match=says):
        change(ASKED)


@pytest.mark.parametrize("policy", ["packing", "incremental", "random", "static"])
@pytest.mark.parametrize("layer", [-1, 2, 10**9])
def test_a_layer_that_does_not_exist_is_the_askers_mistake_and_not_the_policys(
    policy: str, layer: int
) -> None:
    with pytest.raises(InvalidRequest, match=f"layer {layer} does not exist"):
        draft(task_of(SQUARE, [[9, 1, 1, 1]] * 2, by_policy(policy), layers=(layer,)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_heat_that_is_no_heat_reaches_no_policy(bad: float) -> None:
    heat = np.ones((2, 4))
    heat[1, 2] = bad
    with pytest.raises(InvalidTable, match="layer 1 expert 2 has heat"):
        replace(ASKED, heat=heat)


@pytest.mark.parametrize("heat", [np.ones((1, 4), np.int64), np.ones((1, 4), np.float32)])
def test_heat_of_another_type_is_refused_before_a_compiled_loop_reads_it(heat: Any) -> None:
    placement = layers_of([[0, 1], [2, 3]], num_experts=4)
    with pytest.raises(InvalidTable, match="expected float64"):
        PolicyRequest(heat, placement, even_split(2), (0,))
    with pytest.raises(InvalidTable, match="split has shares below 0"):
        PolicyRequest(heat.astype(np.float64), placement, -even_split(2), (0,))
