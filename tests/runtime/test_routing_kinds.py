"""Every kind of routing against values computed by hand, and what each refuses."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.errors import (
    ImpossibleRouting,
)
from moe_runtime.contracts.gating import Choice, Scoring, SelectorSettings
from moe_runtime.contracts.ids import NOT_SENT, LogicalIds
from moe_runtime.contracts.stages import Routed, RoutedBesideZero
from moe_runtime.contracts.tokens import NO_TOKEN_IDS, TokenIds
from moe_runtime.routing.applying import apply, force_balance
from moe_runtime.routing.kinds import (
    Corrected,
    CustomRouting,
    HashRouting,
    HashTable,
    OnInputRouting,
    RouterTensors,
    Routing,
    Uncorrected,
    ZeroExpertRouting,
    groups_of,
)
from moe_runtime.routing.router import GatingPath, RouterInput, bind
from tests.runtime.routings import HASHED, KINDS, TABLE, VOCABULARY, Kind, choose, sigmoid_top_k

SIGMOID, SQRT = Scoring.SIGMOID, Scoring.SQRT_SOFTPLUS


def tensors_of(kind: Kind) -> RouterTensors:
    by = kind.routing.by if isinstance(kind.routing, OnInputRouting) else kind.routing
    if isinstance(by, HashRouting):
        rows = [torch.randperm(8, generator=_generator(row))[: by.top_k] for row in range(17)]
        return HashTable(torch.stack(rows))
    if kind.corrected:
        return Corrected(torch.linspace(-3.0, 3.0, kind.routing.num_candidates))
    return Uncorrected()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- scores ----------------------------------------------------------------------------------


def test_sqrt_softplus_by_hand() -> None:
    settings = SelectorSettings(num_experts=3, top_k=2, scoring=SQRT, renormalise=False)
    choice = choose(settings, Uncorrected(), [[0.0, -2.0, 1.5]])
    want = [math.sqrt(math.log1p(math.exp(x))) for x in (1.5, 0.0)]
    assert choice.experts.ids_TK.numpy().tolist() == [[2, 0]]
    assert choice.weights_TK[0].numpy().tolist() == pytest.approx(want)


@pytest.mark.parametrize("large", [89.0, 1e4, 1e30])
def test_sqrt_softplus_stays_finite_for_large_logits(large: float) -> None:
    """exp(89) is infinite in float32; the square root of the logit itself is right there."""
    settings = SelectorSettings(num_experts=3, top_k=2, scoring=SQRT, renormalise=False)
    router = bind(settings, Uncorrected(), path=GatingPath.REFERENCE)
    logits = torch.tensor([[0.0, large, 1.0]])
    choice = router.choose(RouterInput(torch.zeros(1, 3), logits, NO_TOKEN_IDS), CpuBackend())
    assert float(choice.weights_TK[0, 0]) == pytest.approx(math.sqrt(large), rel=1e-6)


# --- weights and the factor ------------------------------------------------------------------


def rescaled(routing: Routing, factor: float) -> Routing:
    match routing:
        case SelectorSettings() | HashRouting() | CustomRouting():
            return replace(routing, factor=factor)
        case ZeroExpertRouting(among):
            return replace(routing, among=replace(among, factor=factor))
        case OnInputRouting(by):
            return replace(routing, by=replace(by, factor=factor))


@pytest.mark.parametrize("path", GatingPath)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("factor", [0.5, 2.5, 16.0])
def test_weights_are_linear_in_the_factor_on_every_path(
    kind: Kind, path: GatingPath, factor: float
) -> None:
    logits = torch.randn((6, kind.routing.num_candidates), generator=_generator(3)).double()
    x_TD = torch.randn((6, 5), generator=_generator(4)).double()
    given = RouterInput(x_TD, logits, TokenIds(torch.arange(6) % VOCABULARY))

    def weights(routing: Routing) -> tuple[Tensor, Tensor]:
        router = bind(routing, tensors_of(kind), path=path)
        choice = router.choose(given, CpuBackend())
        return choice.weights_TK, effect(apply(routing, choice, x_TD))

    one, effect_of_one = weights(rescaled(kind.routing, 1.0))
    scaled, effect_of_scaled = weights(rescaled(kind.routing, factor))
    torch.testing.assert_close(scaled, factor * one)
    torch.testing.assert_close(effect_of_scaled, factor * effect_of_one)


def effect(applied: Routed | RoutedBesideZero) -> Tensor:
    """Return what experts that only pass their rows on would give: weights count once in it."""
    match applied:
        case Routed(x_TZ, _, weights_TK):
            return x_TZ * weights_TK.sum(dim=1, keepdim=True)
        case RoutedBesideZero(routed, identity_T):
            return effect(routed) + routed.x_TZ * identity_T[:, None]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_weights_are_never_in_the_dtype_of_low_precision_tokens_before_normalising(
    kind: Kind,
) -> None:
    """Tokens of another type (int8 upstream) must leave the weights what they are."""
    logits = torch.randn((6, kind.routing.num_candidates), generator=_generator(3))
    router = bind(kind.routing, tensors_of(kind), path=GatingPath.FUSED_WHERE_LEGAL)
    ids = TokenIds(torch.arange(6))
    wide, narrow = (
        router.choose(RouterInput(torch.ones((6, 4), dtype=d), logits, ids), CpuBackend())
        for d in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(wide.weights_TK, narrow.weights_TK)
    assert narrow.weights_TK.dtype == torch.float32
    assert (narrow.weights_TK > 0).all()


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_factor_that_weights_cannot_have_is_refused(factor: float) -> None:
    for kind in KINDS.values():
        with pytest.raises(ImpossibleRouting, match="cannot be scaled"):
            rescaled(kind.routing, factor)


# --- zero experts ------------------------------------------------------------------------------

ZERO = ZeroExpertRouting(
    SelectorSettings(num_experts=6, top_k=3, scoring=Scoring.SOFTMAX, renormalise=False), 2
)


def choice_of(ids: list[list[int]], weights: list[list[float]]) -> Choice:
    return Choice(LogicalIds(torch.tensor(ids)), torch.tensor(weights))


def test_pairs_of_zero_experts_are_not_sent_and_weigh_the_token_itself_once() -> None:
    choice = choice_of([[5, 0, 4], [1, 2, 3]], [[0.5, 0.25, 0.125], [0.5, 0.25, 0.125]])
    applied = apply(ZERO, choice, torch.ones((2, 3)))
    assert isinstance(applied, RoutedBesideZero)
    assert applied.routed.experts.ids_TK.numpy().tolist() == [[NOT_SENT, 0, NOT_SENT], [1, 2, 3]]
    assert applied.routed.weights_TK.numpy().tolist() == [[0.0, 0.25, 0.0], [0.5, 0.25, 0.125]]
    assert applied.identity_T.numpy().tolist() == [0.625, 0.0]


def test_zero_experts_compete_with_the_routed_ones() -> None:
    choice = choose(ZERO, Corrected(torch.zeros(6)), [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    assert choice.experts.ids_TK.numpy().tolist() == [[5, 4, 3]]


@pytest.mark.parametrize("num_zero", [0, -1, 4, 6])
def test_a_number_of_zero_experts_that_leaves_too_few_routed_ones_is_refused(
    num_zero: int,
) -> None:
    with pytest.raises(ImpossibleRouting, match="it must be 1 to 3"):
        replace(ZERO, num_zero=num_zero)


def test_zero_experts_belong_to_no_group() -> None:
    grouped = replace(ZERO.among, num_groups=2, kept_groups=1)
    with pytest.raises(ImpossibleRouting, match="belong to no group"):
        ZeroExpertRouting(grouped, 1)


# --- weight on the input -----------------------------------------------------------------------


def test_a_weight_on_the_input_is_applied_there_and_nowhere_else() -> None:
    by = CustomRouting(num_experts=4, top_k=1, function=sigmoid_top_k)
    applied = apply(OnInputRouting(by), choice_of([[2], [0]], [[0.5], [3.0]]), torch.ones((2, 2)))
    assert isinstance(applied, Routed)
    assert applied.x_TZ.numpy().tolist() == [[0.5, 0.5], [3.0, 3.0]]
    assert applied.weights_TK.numpy().tolist() == [[1.0], [1.0]]


def test_a_weight_on_the_input_of_several_experts_is_refused() -> None:
    with pytest.raises(ImpossibleRouting, match="needs top_k 1, not 2"):
        OnInputRouting(HASHED)


# --- forced balance ------------------------------------------------------------------------------


def test_forced_balance_takes_experts_in_turn_and_keeps_the_weights() -> None:
    choice = choice_of([[0, 0]] * 4, [[0.5, 0.25]] * 4)
    forced = force_balance(choice, num_experts=5, first_row=3)
    assert forced.experts.ids_TK.numpy().tolist() == [[1, 2], [3, 4], [0, 1], [2, 3]]
    assert forced.weights_TK is choice.weights_TK


@pytest.mark.parametrize("top_k", [1, 3, 7])
def test_forced_balance_is_even_and_distinct_whatever_was_chosen(top_k: int) -> None:
    choice = choice_of([[0] * top_k] * 20, [[1.0] * top_k] * 20)
    ids_TK = force_balance(choice, num_experts=7, first_row=0).experts.ids_TK
    loads = torch.bincount(ids_TK.reshape(-1), minlength=7)
    assert int(loads.max() - loads.min()) <= 1
    assert all(len(set(row)) == top_k for row in ids_TK.numpy().tolist())


# --- impossible combinations ---------------------------------------------------------------------

SCORED = SelectorSettings(num_experts=4, top_k=2, scoring=SIGMOID)
CUSTOM = CustomRouting(num_experts=4, top_k=2, function=sigmoid_top_k)
BIAS = Corrected(torch.zeros(4))


@pytest.mark.parametrize(
    ("routing", "tensors"),
    [(SCORED, TABLE), (HASHED, BIAS), (HASHED, Uncorrected()), (CUSTOM, BIAS), (CUSTOM, TABLE)],
)
def test_tensors_of_another_kind_are_refused(routing: Routing, tensors: RouterTensors) -> None:
    with pytest.raises(ImpossibleRouting, match="cannot use the router tensors"):
        bind(routing, tensors, path=GatingPath.REFERENCE)


@pytest.mark.parametrize("top_k", [0, 5])
def test_more_experts_than_there_are_cannot_be_chosen(top_k: int) -> None:
    with pytest.raises(ImpossibleRouting, match="top_k must be 1 to 4"):
        replace(HASHED, top_k=top_k)
    with pytest.raises(ImpossibleRouting, match="top_k must be 1 to 4"):
        replace(CUSTOM, top_k=top_k)


def test_a_table_of_no_tokens_is_refused() -> None:
    with pytest.raises(ImpossibleRouting, match="routes no token"):
        replace(HASHED, vocabulary=0)


def test_groups_count_for_placement_only_where_a_token_may_not_use_all() -> None:
    limited = SelectorSettings(num_experts=8, top_k=1, scoring=SIGMOID, num_groups=4, kept_groups=2)
    assert groups_of(limited) == groups_of(OnInputRouting(limited)) == 4
    assert groups_of(replace(limited, kept_groups=4)) == 1
    assert groups_of(KINDS["hashed"].routing) == 1
