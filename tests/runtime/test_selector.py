"""The selector chooses by corrected scores and weighs by plain ones, and the factor counts once."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.errors import ImpossibleRouting, ShapeMismatch
from moe_runtime.contracts.gating import Choice, Scoring, SelectorSettings
from moe_runtime.routing.selector import select

SOFTMAX, SIGMOID = Scoring.SOFTMAX, Scoring.SIGMOID


def choose(
    logits: list[float] | Tensor,
    settings: SelectorSettings,
    correction: list[float] | None = None,
) -> Choice:
    logits_TE = torch.as_tensor(logits, dtype=torch.float64).reshape(-1, settings.num_experts)
    correction_E = None if correction is None else torch.tensor(correction, dtype=torch.float64)
    return select(logits_TE, settings, correction_E=correction_E, backend=CpuBackend())


def ids(choice: Choice) -> list[list[int]]:
    return choice.experts.ids_TK.numpy().tolist()


def settings(num_experts: int, top_k: int, scoring: Scoring = SIGMOID) -> SelectorSettings:
    return SelectorSettings(num_experts=num_experts, top_k=top_k, scoring=scoring)


def log_odds(score: float) -> float:
    """Return the logit whose sigmoid is the score."""
    return math.log(score / (1 - score))


def test_softmax_without_renormalising_keeps_the_scores() -> None:
    logits = [math.log(n) for n in (4, 1, 3, 2)]
    choice = choose(logits, replace(settings(4, 2, SOFTMAX), renormalise=False))
    assert ids(choice) == [[0, 2]]
    assert choice.weights_TK[0].numpy().tolist() == pytest.approx([0.4, 0.3])


def test_softmax_renormalised_sums_to_one() -> None:
    choice = choose([math.log(n) for n in (4, 1, 3, 2)], settings(4, 2, SOFTMAX))
    assert choice.weights_TK[0].numpy().tolist() == pytest.approx([4 / 7, 3 / 7])


def test_sigmoid_by_hand() -> None:
    logits = [log_odds(s) for s in (0.2, 0.9, 0.6, 0.3)]
    plain = choose(logits, replace(settings(4, 2), renormalise=False))
    assert plain.weights_TK[0].numpy().tolist() == pytest.approx([0.9, 0.6])
    assert choose(logits, settings(4, 2)).weights_TK[0].numpy().tolist() == pytest.approx(
        [0.6, 0.4]
    )


def test_a_correction_chooses_and_never_weighs() -> None:
    logits = [log_odds(s) for s in (0.2, 0.9, 0.6, 0.3)]
    choice = choose(logits, replace(settings(4, 2), renormalise=False), [5.0, 0, 0, 0])
    assert ids(choice) == [[0, 1]]
    assert choice.weights_TK[0].numpy().tolist() == pytest.approx([0.2, 0.9])


@pytest.mark.parametrize("scoring", Scoring)
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("correction", [None, [0.5, -0.5] * 4])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_the_factor_is_applied_exactly_once(
    scoring: Scoring, *, renormalise: bool, correction: list[float] | None, groups: tuple[int, int]
) -> None:
    one = SelectorSettings(
        num_experts=8,
        top_k=3,
        scoring=scoring,
        renormalise=renormalise,
        num_groups=groups[0],
        kept_groups=groups[1],
    )
    logits = torch.randn((5, 8), generator=torch.Generator().manual_seed(1))
    weights = choose(logits, one, correction).weights_TK
    scaled = choose(logits, replace(one, factor=2.5), correction).weights_TK
    torch.testing.assert_close(scaled / weights, torch.full_like(weights, 2.5))


GROUPED = replace(settings(6, 2), num_groups=3, kept_groups=1)


def test_without_a_correction_a_group_is_worth_its_best_expert() -> None:
    scores = [0.9, 0.1, 0.7, 0.6, 0.2, 0.2]
    assert ids(choose([log_odds(s) for s in scores], GROUPED)) == [[0, 1]]


def test_with_a_correction_a_group_is_worth_its_two_best_experts() -> None:
    scores = [0.9, 0.1, 0.7, 0.6, 0.2, 0.2]
    assert ids(choose([log_odds(s) for s in scores], GROUPED, [0.0] * 6)) == [[2, 3]]


def test_a_negative_score_in_a_kept_group_beats_every_dropped_group() -> None:
    # Group 0 is kept for 0.9 - 0.1 = 0.8 in sum; its second expert stands at -0.1, below the
    # zeros that a mask of 0 would have put in place of the dropped groups.
    scores = [0.9, 0.4, 0.2, 0.1, 0.2, 0.1]
    choice = choose([log_odds(s) for s in scores], GROUPED, [0.0, -0.5, 0, 0, 0, 0])
    assert ids(choice) == [[0, 1]]


def test_ties_go_to_the_lower_id() -> None:
    assert ids(choose([0.0] * 8, settings(8, 3))) == [[0, 1, 2]]
    assert ids(choose([0.0, 1.0] * 4, settings(8, 5))) == [[1, 3, 5, 7, 0]]


def test_ties_between_groups_go_to_the_lower_group() -> None:
    assert ids(choose([0.0] * 6, GROUPED)) == [[0, 1]]


def test_scores_of_zero_give_weights_of_zero_not_nan() -> None:
    choice = choose([-1e6] * 4, settings(4, 2))
    assert choice.weights_TK.numpy().tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("scoring", Scoring)
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
@pytest.mark.parametrize("correction", [None, [0.5, -0.5] * 4])
def test_nan_logits_still_choose_experts_there_are_and_weigh_them_nan(
    scoring: Scoring, groups: tuple[int, int], correction: list[float] | None
) -> None:
    """A broken token must not break the step: it goes to distinct experts and comes back NaN."""
    broken = replace(settings(8, 3, scoring), num_groups=groups[0], kept_groups=groups[1])
    logits = torch.zeros((3, 8), dtype=torch.float64)
    logits[0], logits[1, 5] = math.nan, math.nan
    choice = choose(logits, broken, correction)
    for row in ids(choice):
        assert len(set(row)) == 3
        assert set(row) <= set(range(8))
    assert choice.weights_TK[:2].isnan().all()
    assert not choice.weights_TK[2].isnan().any()


def test_an_expert_at_minus_infinity_is_chosen_last_and_weighs_nothing() -> None:
    logits = [0.0, -math.inf, 0.0, -math.inf]
    for scoring in Scoring:
        choice = choose(logits, settings(4, 3, scoring))
        assert ids(choice) == [[0, 2, 1]]
        assert choice.weights_TK[0].numpy().tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_all_experts_or_groups_of_one_may_be_chosen_from() -> None:
    logits = [0.1, 0.3, 0.2, 0.4]
    assert ids(choose(logits, settings(4, 4))) == [[3, 1, 2, 0]]
    single = replace(settings(4, 2), num_groups=4, kept_groups=2)
    assert ids(choose(logits, single)) == [[3, 1]]


def test_logits_need_not_be_contiguous() -> None:
    logits = torch.randn((8, 5), generator=torch.Generator().manual_seed(3)).t()
    grouped = replace(settings(8, 3), num_groups=4, kept_groups=2)
    assert ids(choose(logits.contiguous(), grouped)) == ids(choose(logits, grouped))


def test_no_tokens_are_routed_to_nothing() -> None:
    grouped = replace(settings(8, 3), num_groups=4, kept_groups=2)
    choice = choose(torch.empty((0, 8)), grouped, [0.0] * 8)
    assert choice.weights_TK.shape == choice.experts.ids_TK.shape == (0, 3)


def test_top_16_of_896() -> None:
    """Kimi K3's router: distinct experts, and none left out that scores higher."""
    logits = torch.randn((4, 896), generator=torch.Generator().manual_seed(2))
    chosen = choose(logits, settings(896, 16)).experts.ids_TK
    assert chosen.dtype == torch.int64
    for row, picked in zip(logits, chosen, strict=True):
        assert len(set(picked.numpy().tolist())) == 16
        assert row[picked].min() >= row.sort().values[-16]


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = torch.zeros((1, 4), dtype=torch.bfloat16)
    choice = select(logits, settings(4, 3), correction_E=None, backend=CpuBackend())
    assert choice.weights_TK.dtype == torch.float32


@given(e=st.integers(1, 32), k=st.integers(0, 40), g=st.integers(0, 9), kept=st.integers(0, 9))
def test_settings_are_refused_exactly_when_no_input_could_satisfy_them(
    e: int, k: int, g: int, kept: int
) -> None:
    possible = g >= 1 and e % g == 0 and 1 <= kept <= g and 1 <= k <= kept * (e // g)
    try:
        SelectorSettings(num_experts=e, top_k=k, scoring=SIGMOID, num_groups=g, kept_groups=kept)
    except ImpossibleRouting:
        assert not possible
    else:
        assert possible


def test_a_correction_needs_groups_of_two() -> None:
    single = SelectorSettings(num_experts=4, top_k=2, scoring=SIGMOID, num_groups=4, kept_groups=2)
    with pytest.raises(ImpossibleRouting, match="two best"):
        choose([0.0] * 4, single, [0.0] * 4)


def test_shapes_are_checked_by_name() -> None:
    with pytest.raises(ShapeMismatch, match=r"logits has shape \(2, 5\), expected \(T, 4\)"):
        select(torch.zeros(2, 5), settings(4, 2), correction_E=None, backend=CpuBackend())
    with pytest.raises(ShapeMismatch, match="correction"):
        choose([0.0] * 4, settings(4, 2), [0.0] * 5)
