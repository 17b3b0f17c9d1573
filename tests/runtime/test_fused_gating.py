"""The fused gating is used only where it is legal, and then gives what the reference gives."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.gating import Scoring, SelectorSettings
from moe_runtime.contracts.tokens import NO_TOKEN_IDS
from moe_runtime.routing.fused import refusals
from moe_runtime.routing.kinds import Corrected, Uncorrected
from moe_runtime.routing.router import GatingPath, RouterInput, ScoreRouter, bind
from moe_runtime.routing.selector import select

BACKEND = CpuBackend()
SOFTMAX, SIGMOID, SQRT = Scoring
PLAIN = SelectorSettings(num_experts=8, top_k=2, scoring=SIGMOID)


def assert_equal(
    logits_TE: Tensor, settings: SelectorSettings, correction_E: Tensor | None
) -> None:
    want = select(logits_TE, settings, correction_E=correction_E, backend=BACKEND)
    got = BACKEND.gate(logits_TE, settings, correction_E)
    assert torch.equal(got.experts.ids_TK, want.experts.ids_TK)
    assert torch.equal(got.weights_TK, want.weights_TK)


@st.composite
def legal_settings(draw: st.DrawFn, *, corrected: bool) -> SelectorSettings:
    num_groups = draw(st.integers(1, 6))
    size = draw(st.integers(1, 12))
    kept = draw(st.integers(1, num_groups))
    settings = SelectorSettings(
        num_experts=num_groups * size,
        top_k=draw(st.integers(1, kept * size)),
        scoring=draw(st.sampled_from(Scoring)),
        renormalise=draw(st.booleans()),
        factor=draw(st.sampled_from([1.0, 2.5])),
        num_groups=num_groups,
        kept_groups=kept,
    )
    assume(not refusals(settings, corrected=corrected))
    return settings


@given(
    data=st.data(),
    seed=st.integers(0, 10_000),
    corrected=st.booleans(),
    levels=st.sampled_from([2, 5, 1000]),
    rows=st.integers(0, 4),
)
def test_wherever_it_is_legal_both_choose_and_weigh_alike(
    data: st.DataObject, seed: int, *, corrected: bool, levels: int, rows: int
) -> None:
    """Few levels make ties; the correction is negative as often as not."""
    settings = data.draw(legal_settings(corrected=corrected))
    draw = torch.Generator().manual_seed(seed)
    e = settings.num_experts
    logits = torch.randint(-levels, levels + 1, (rows, e), generator=draw) * (8.0 / levels)
    correction = torch.randint(-levels, levels + 1, (e,), generator=draw) * (2.0 / levels)
    assert_equal(logits, settings, correction if corrected else None)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30])
@pytest.mark.parametrize("scoring", Scoring)
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_broken_logits_go_the_same_way_on_both_paths(
    broken: float, scoring: Scoring, groups: tuple[int, int]
) -> None:
    settings = replace(PLAIN, scoring=scoring, num_groups=groups[0], kept_groups=groups[1])
    logits = torch.randn((6, 8), generator=torch.Generator().manual_seed(1))
    logits[1, 3], logits[2, :5], logits[3] = broken, broken, broken
    for correction in (None, torch.linspace(-1, 1, 8)):
        want = select(logits, settings, correction_E=correction, backend=BACKEND)
        got = BACKEND.gate(logits, settings, correction)
        assert torch.equal(got.experts.ids_TK, want.experts.ids_TK)
        torch.testing.assert_close(got.weights_TK, want.weights_TK, equal_nan=True, rtol=0, atol=0)


def test_a_correction_of_minus_infinity_still_stands_before_dropped_groups() -> None:
    settings = replace(PLAIN, num_groups=4, kept_groups=1)
    correction = torch.tensor([-torch.inf, 0.0, -torch.inf, -torch.inf, -9, -9, -9, -9])
    logits = torch.randn((5, 8), generator=torch.Generator().manual_seed(1))
    for kept in (1, 3, 4):
        assert_equal(logits, replace(settings, kept_groups=kept, top_k=2 * kept), correction)


def test_top_16_of_896_is_legal_and_alike() -> None:
    kimi = SelectorSettings(num_experts=896, top_k=16, scoring=SIGMOID, factor=2.5)
    assert refusals(kimi, corrected=True) == ()
    draw = torch.Generator().manual_seed(2)
    logits, correction = torch.randn((4, 896), generator=draw), torch.randn(896, generator=draw)
    assert_equal(logits, kimi, correction)


GROUPS_OF_ONE = replace(PLAIN, num_groups=8, kept_groups=4)
REFUSED = {
    "sigmoid as it is": (replace(PLAIN, renormalise=False), True, "always normalises sigmoid"),
    "sqrtsoftplus as it is": (
        replace(PLAIN, scoring=SQRT, renormalise=False),
        False,
        "always normalises sqrtsoftplus",
    ),
    "sqrtsoftplus in groups": (
        replace(PLAIN, scoring=SQRT, num_groups=2, kept_groups=1),
        False,
        "only without groups",
    ),
    "too many experts": (replace(PLAIN, num_experts=2049), False, "2049 experts"),
    "too many when padded": (
        replace(PLAIN, num_experts=330, num_groups=66, kept_groups=9),
        False,
        "66 groups of 5 experts, padded to 32 each, make 2112",
    ),
    "groups of one judged by two": (GROUPS_OF_ONE, True, "they hold one"),
}


@pytest.mark.parametrize(("settings", "corrected", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_every_limit_is_named(settings: SelectorSettings, *, corrected: bool, why: str) -> None:
    (reason,) = refusals(settings, corrected=corrected)
    assert why in reason


def test_all_reasons_are_given_not_only_the_first() -> None:
    settings = replace(PLAIN, num_experts=4096, num_groups=2, renormalise=False, scoring=SQRT)
    assert len(refusals(settings, corrected=False)) == 3


@pytest.mark.parametrize(
    "settings",
    [
        replace(PLAIN, scoring=SOFTMAX, renormalise=False),
        replace(PLAIN, scoring=SQRT),
        replace(PLAIN, num_experts=2048),
        replace(PLAIN, num_experts=2048, num_groups=64, kept_groups=4),
        GROUPS_OF_ONE,
        replace(PLAIN, num_experts=48, num_groups=3, kept_groups=1),
    ],
)
def test_what_the_kernel_takes_is_legal(settings: SelectorSettings) -> None:
    """The last has 3 groups of 16, which vllm-ascend refuses beside tokens of width 64."""
    assert refusals(settings, corrected=False) == ()


@pytest.mark.parametrize("width", [1, 4, 48, 64])
def test_the_width_of_the_tokens_has_no_say(width: int) -> None:
    settings = replace(PLAIN, num_experts=48, num_groups=3, kept_groups=1)
    router = bind(settings, Uncorrected(), path=GatingPath.FUSED_WHERE_LEGAL)
    assert isinstance(router, ScoreRouter)
    assert router.is_fused()
    given = RouterInput(torch.zeros((5, width)), torch.zeros((5, 48)), NO_TOKEN_IDS)
    assert router.choose(given, BACKEND).experts.ids_TK.numpy().tolist() == [[0, 1]] * 5


def test_a_router_falls_back_to_the_reference_where_the_fused_path_is_illegal() -> None:
    illegal = replace(PLAIN, renormalise=False)
    tensors = Corrected(torch.zeros(8))
    router = bind(illegal, tensors, path=GatingPath.FUSED_WHERE_LEGAL)
    assert isinstance(router, ScoreRouter)
    assert not router.is_fused()
    reference = bind(PLAIN, tensors, path=GatingPath.REFERENCE)
    assert isinstance(reference, ScoreRouter)
    assert not reference.is_fused()
