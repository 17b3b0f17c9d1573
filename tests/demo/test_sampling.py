"""Replayed traffic hits every expert as often as the real counts say."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.counts import DOMAINS, TOP_K, domain_counts
from benchmarks.demo.model import NUM_EXPERTS, NUM_LAYERS, SHAPE, flat_start
from benchmarks.sampling import GROUP, draw_experts, inclusion, logits_for
from benchmarks.traffic import Schedule, Traffic
from moe_runtime.runtime import Alone, Batch, ExchangeMode, MoeRuntime, SlotLayout, SyntheticModel

FloatArray = npt.NDArray[np.float64]


def share(counts_E: npt.NDArray[np.int64]) -> FloatArray:
    return counts_E / counts_E.sum()


def total_variation(drawn_E: npt.NDArray[np.int64], counts_E: npt.NDArray[np.int64]) -> float:
    return float(np.abs(share(drawn_E) - share(counts_E)).sum() / 2)


def hits(experts_TK: npt.NDArray[np.int64], num_experts: int) -> npt.NDArray[np.int64]:
    return np.bincount(experts_TK.ravel(), minlength=num_experts)


@pytest.mark.parametrize("domain", DOMAINS)
def test_experts_are_drawn_as_often_as_the_counts_say(domain: str) -> None:
    draw = np.random.default_rng(0)
    for counts_E in domain_counts(domain):
        probabilities = inclusion(counts_E, top_k=TOP_K)
        groups = [draw_experts(probabilities, num_tokens=16, draw=draw) for _ in range(500)]
        assert total_variation(hits(np.concatenate(groups), NUM_EXPERTS), counts_E) < 0.01


def test_noise_on_log_counts_would_miss_the_hot_experts() -> None:
    draw = np.random.default_rng(0)
    counts_E = domain_counts("arxiv")[0]
    noisy_TE = np.log(counts_E) + draw.gumbel(size=(8000, NUM_EXPERTS))
    naive_TK = np.argsort(-noisy_TE, axis=1)[:, :TOP_K]
    naive_E = hits(naive_TK, NUM_EXPERTS)

    hottest = int(counts_E.argmax())
    assert total_variation(naive_E, counts_E) > 0.03
    assert share(naive_E)[hottest] < 0.7 * share(counts_E)[hottest]


@given(
    counts=st.lists(st.integers(0, 1000), min_size=4, max_size=20).filter(
        lambda c: sum(n > 0 for n in c) >= 3
    ),
    num_tokens=st.integers(1, GROUP),
    seed=st.integers(0, 1000),
)
def test_a_group_hits_each_expert_within_one_of_its_share_and_no_token_twice(
    counts: list[int], num_tokens: int, seed: int
) -> None:
    probabilities = inclusion(counts, top_k=3)
    draw = np.random.default_rng(seed)
    experts_TK = draw_experts(probabilities, num_tokens=num_tokens, draw=draw)

    assert experts_TK.shape == (num_tokens, 3)
    assert all(len(set(token)) == 3 for token in experts_TK.tolist())
    off_E = hits(experts_TK, len(counts)) - probabilities * num_tokens
    assert (np.abs(off_E) < 1 + 1e-9).all()


@given(
    counts=st.lists(st.integers(0, 10**6), min_size=5, max_size=30).filter(
        lambda c: sum(n > 0 for n in c) >= 5
    )
)
def test_probabilities_are_capped_and_add_up(counts: list[int]) -> None:
    probabilities = inclusion(counts, top_k=5)
    assert probabilities.max() <= 1 + 1e-12
    assert probabilities.sum() == pytest.approx(5)
    assert (np.diff(probabilities[np.argsort(counts)]) >= -1e-12).all()


def test_fewer_experts_with_counts_than_a_token_needs_are_refused() -> None:
    with pytest.raises(ValueError, match="2 experts were hit; expected at least 3"):
        inclusion([5, 0, 7, 0], top_k=3)


def test_tokens_of_a_group_differ() -> None:
    probabilities = inclusion(domain_counts("c4")[0], top_k=TOP_K)
    experts_TK = draw_experts(probabilities, num_tokens=32, draw=np.random.default_rng(1))
    assert len({frozenset(token) for token in experts_TK.tolist()}) == 32


def test_an_unknown_domain_names_those_that_exist() -> None:
    with pytest.raises(KeyError, match=r"no counts of 'poems'; expected one of arxiv, book"):
        domain_counts("poems")


def served(batch: Batch) -> npt.NDArray[np.int64]:
    """[L, E] what the runtime's own selector chose."""
    runtime = MoeRuntime(
        SyntheticModel(SHAPE),
        flat_start(SlotLayout((NUM_EXPERTS,)), 0, staging_rows=1),
        peers=Alone(),
        mode=ExchangeMode.ALL_TO_ALL,
    )
    runtime.forward(batch)
    return runtime.counters().sent_HLE.sum(axis=0)


def test_the_selector_picks_exactly_the_experts_that_were_drawn() -> None:
    schedule = Schedule(("github",), 8, 0.05)
    batch = Traffic(schedule, width=SHAPE.width, seed=3).batch(7, rank=2)
    chosen_LE = served(batch)

    draw = np.random.default_rng((3, 7, 2))
    draw.standard_normal((schedule.prefill_tokens, SHAPE.width), dtype=np.float32)
    for layer, counts_E in enumerate(domain_counts("github")):
        probabilities = inclusion(counts_E, top_k=TOP_K)
        experts_TK = draw_experts(probabilities, num_tokens=schedule.prefill_tokens, draw=draw)
        logits_for(experts_TK, num_experts=NUM_EXPERTS, draw=draw)
        assert (chosen_LE[layer] == hits(experts_TK, NUM_EXPERTS)).all()


def test_traffic_is_a_function_of_seed_step_and_rank() -> None:
    def batch(seed: int, step: int, rank: int) -> Batch:
        traffic = Traffic(Schedule(("c4", "book"), 40, 0.05), width=SHAPE.width, seed=seed)
        return traffic.batch(step, rank)

    same, again = batch(1, 5, 3), batch(1, 5, 3)
    assert torch.equal(same.x_TD, again.x_TD)
    for other in (batch(2, 5, 3), batch(1, 6, 3), batch(1, 5, 4)):
        assert not torch.equal(same.x_TD, other.x_TD)


def test_ranks_bring_equally_many_tokens_over_a_cycle_although_each_is_idle_at_times() -> None:
    schedule = Schedule(("c4",), 16, 0.05)
    tokens_NT = np.array([[schedule.num_tokens(t, r) for t in range(16)] for r in range(8)])
    assert len(set(tokens_NT.sum(axis=1).tolist())) == 1
    assert ((tokens_NT == 0).sum(axis=1) == 1).all()
    assert set(tokens_NT.ravel().tolist()) == {0, 16, 48}


def test_domains_follow_one_another_and_begin_again() -> None:
    schedule = Schedule(("c4", "book"), 10, 0.05)
    assert [schedule.domain(step) for step in (0, 9, 10, 19, 20)] == [
        "c4",
        "c4",
        "book",
        "book",
        "c4",
    ]


def test_each_layer_replays_its_own_counts() -> None:
    assert domain_counts("c4").shape == (NUM_LAYERS, NUM_EXPERTS)
