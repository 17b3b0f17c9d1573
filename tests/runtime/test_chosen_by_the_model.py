"""Choices that are not the selector's: by token id, and by a function of the model."""

import math

import pytest
import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.errors import (
    BadChoice,
    ImpossibleRouting,
    MissingTokenIds,
    ShapeMismatch,
    TokenIdOutOfRange,
)
from moe_runtime.contracts.tokens import NO_TOKEN_IDS, TokenIds
from moe_runtime.routing.kinds import Chosen, CustomRouting, HashTable, Uncorrected
from moe_runtime.routing.router import GatingPath, RouterInput, bind
from tests.runtime.routings import HASHED, TABLE, choose


def token_ids(*ids: int) -> TokenIds:
    return TokenIds(torch.tensor(ids))


# --- by token id -----------------------------------------------------------------------------


def test_a_table_chooses_and_scores_weigh() -> None:
    logits = [[9.0, -9.0, 9.0, 9.0], [1.0, 2.0, 3.0, 4.0]]
    choice = choose(HASHED, TABLE, logits, token_ids(2, 1))
    assert choice.experts.ids_TK.numpy().tolist() == [[2, 0], [3, 2]]
    four, three = (math.sqrt(math.log1p(math.exp(x))) for x in (4.0, 3.0))
    want = [2 * four / (four + three), 2 * three / (four + three)]
    assert choice.weights_TK[0].numpy().tolist() == pytest.approx([1.0, 1.0])
    assert choice.weights_TK[1].numpy().tolist() == pytest.approx(want)


def test_tokens_without_ids_are_refused_and_never_routed_by_their_scores() -> None:
    with pytest.raises(MissingTokenIds, match="brings 2 rows without any"):
        choose(HASHED, TABLE, [[0.0] * 4] * 2)
    assert choose(HASHED, TABLE, []).experts.ids_TK.shape == (0, 2)


@pytest.mark.parametrize("foreign", [-1, 3, 1 << 40])
def test_an_id_without_a_row_is_refused_by_name(foreign: int) -> None:
    with pytest.raises(TokenIdOutOfRange, match=rf"\[{foreign}\] have no row .* 0 to 2"):
        choose(HASHED, TABLE, [[0.0] * 4] * 2, token_ids(1, foreign))


def test_ids_of_other_rows_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match=r"token_ids has shape \(3,\), expected \(2,\)"):
        choose(HASHED, TABLE, [[0.0] * 4] * 2, token_ids(0, 1, 2))


@pytest.mark.parametrize(
    "ids", [torch.zeros(2), torch.zeros((2, 1), dtype=torch.int64), torch.ones(2).bool()]
)
def test_token_ids_are_one_integer_a_row(ids: Tensor) -> None:
    with pytest.raises(ShapeMismatch, match="token ids of"):
        TokenIds(ids)


def test_a_table_must_fit_its_model() -> None:
    with pytest.raises(ShapeMismatch, match=r"expected integers \(3, 2\)"):
        choose(HASHED, HashTable(torch.zeros((2, 3), dtype=torch.int64)), [])
    with pytest.raises(ShapeMismatch, match=r"table of torch\.float32"):
        choose(HASHED, HashTable(torch.zeros((3, 2))), [])
    with pytest.raises(ImpossibleRouting, match=r"names experts \[-1, 4\], expected 0 to 3"):
        choose(HASHED, HashTable(torch.tensor([[0, 4], [1, 2], [-1, 0]])), [])


def test_a_row_that_names_an_expert_twice_is_refused_only_when_a_token_uses_it() -> None:
    padded = HashTable(torch.tensor([[0, 1], [3, 2], [0, 0]]))
    choose(HASHED, padded, [[0.0] * 4], token_ids(1))
    with pytest.raises(BadChoice, match=r"table chose an expert twice for 1 tokens.*\[0, 0\]"):
        choose(HASHED, padded, [[0.0] * 4] * 2, token_ids(1, 2))


# --- by a function of the model ----------------------------------------------------------------


def test_a_models_own_function_reads_what_the_router_reads_and_is_scaled_once() -> None:
    seen: list[tuple[Tensor, Tensor, int]] = []

    def own(x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
        seen.append((x_TD, logits_TE, top_k))
        return Chosen(torch.tensor([[3, 0]], dtype=torch.int32), torch.tensor([[0.75, 0.5]]))

    routing = CustomRouting(num_experts=4, top_k=2, function=own, factor=2.0)
    given = RouterInput(torch.rand(1, 3), torch.rand(1, 4), NO_TOKEN_IDS)
    router = bind(routing, Uncorrected(), path=GatingPath.FUSED_WHERE_LEGAL)
    choice = router.choose(given, CpuBackend())
    ((x_TD, logits_TE, top_k),) = seen
    assert x_TD is given.x_TD
    assert logits_TE is given.logits_TX
    assert top_k == 2
    assert choice.experts.ids_TK.dtype == torch.int64
    assert choice.experts.ids_TK.numpy().tolist() == [[3, 0]]
    assert choice.weights_TK.numpy().tolist() == [[1.5, 1.0]]


FAULTS: dict[str, tuple[Chosen, type[Exception], str]] = {
    "outside": (Chosen(torch.tensor([[4, 0]]), torch.ones(1, 2)), BadChoice, r"experts \[4\]"),
    "negative": (Chosen(torch.tensor([[-1, 0]]), torch.ones(1, 2)), BadChoice, r"experts \[-1\]"),
    "twice": (Chosen(torch.tensor([[2, 2]]), torch.ones(1, 2)), BadChoice, "twice for 1 tokens"),
    "ids as floats": (Chosen(torch.ones(1, 2), torch.ones(1, 2)), BadChoice, "torch.float32"),
    "whole weights": (
        Chosen(torch.tensor([[1, 0]]), torch.tensor([[1, 0]])),
        BadChoice,
        "weights as torch.int64",
    ),
    "too few ids": (Chosen(torch.tensor([[1]]), torch.ones(1, 2)), ShapeMismatch, "ids has shape"),
    "too few weights": (
        Chosen(torch.tensor([[1, 0]]), torch.ones(1, 1)),
        ShapeMismatch,
        "weights has shape",
    ),
}


@pytest.mark.parametrize(("chosen", "error", "told"), FAULTS.values(), ids=FAULTS.keys())
def test_what_a_models_own_function_returns_is_checked(
    chosen: Chosen, error: type[Exception], told: str
) -> None:
    def own(x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
        del x_TD, logits_TE, top_k
        return chosen

    with pytest.raises(error, match=told):
        choose(CustomRouting(num_experts=4, top_k=2, function=own), Uncorrected(), [[0.0] * 4])
