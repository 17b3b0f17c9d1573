"""A model is ours whole or not at all."""

from dataclasses import dataclass, field
from typing import cast

import pytest
import torch

from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.vllm import (
    CannotOwn,
    Claim,
    Contradiction,
    Options,
    Unowned,
    agreed_redundancy,
    claim_of_map,
    claim_of_setting,
)
from moe_runtime.vllm.demands import require_built_as_needed, require_sum_is_taken_once
from moe_runtime.vllm.factory import FactoryTaken, reasons_against, token_table
from moe_runtime.vllm.memory import memory_taken
from moe_runtime.vllm.seams import MoEConfig, Runner

UNFIT = {"prefix": "layers.1.experts", "num_experts": 8, "has_bias": True}
PLAIN = {"prefix": "layers.2.experts", "num_experts": 8}


class Original:
    """Stands in for vLLM's factory and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    def __call__(self, **keywords: object) -> Runner:
        self.asked.append(keywords)
        return cast("Runner", object())


def taken(unowned: Unowned) -> tuple[FactoryTaken, Original]:
    original = Original()
    return FactoryTaken(Options(unowned=unowned), "FusedMoEFactory", original), original


def test_what_cannot_be_owned_is_refused_by_name() -> None:
    factory, original = taken(Unowned.REFUSE)
    with pytest.raises(CannotOwn, match=r"layers\.1\.experts .* have biases \(has_bias\)"):
        factory.make(**UNFIT)
    assert not original.asked


def test_what_cannot_be_owned_is_left_to_vllm_whole() -> None:
    factory, original = taken(Unowned.SERVE)
    factory.make(**UNFIT)
    factory.make(**PLAIN)
    assert original.asked == [UNFIT, PLAIN], "a later layer was taken, or made otherwise"
    assert factory.declined is not None


def test_a_model_of_which_a_layer_is_owned_is_not_left_half() -> None:
    """It is built anew, all of it for vLLM, or it is refused."""
    factory, original = taken(Unowned.SERVE)
    factory.num_made = 1
    with pytest.raises(CannotOwn) as why:
        factory.make(**UNFIT)
    factory.leave_to_engine(why.value)
    factory.make(**PLAIN)
    factory.make(**UNFIT)
    assert original.asked == [PLAIN, UNFIT]
    refusing, _ = taken(Unowned.REFUSE)
    with pytest.raises(CannotOwn):
        refusing.leave_to_engine(why.value)


def test_one_who_asks_for_redundant_experts_gets_them() -> None:
    assert agreed_redundancy("qwen", []) == 0
    assert agreed_redundancy("qwen", [claim_of_map(20, 16)]) == 4
    assert agreed_redundancy("qwen", [claim_of_map(20, 16), claim_of_setting(4)]) == 4


def test_redundancy_that_is_disputed_is_refused_with_all_numbers() -> None:
    """Engine side of F44: whichever was taken, slots and map would drift apart."""
    claims = [claim_of_setting(8), claim_of_map(20, 16), Claim("vLLM's", 0)]
    with pytest.raises(Contradiction, match="qwen") as refused:
        agreed_redundancy("qwen", claims)
    told = str(refused.value)
    assert "EPLB_VLLM_REDUNDANT_EXPERTS: 8" in told
    assert "20 slots for 16 experts: 4" in told
    assert "vLLM's: 0" in told
    with pytest.raises(Contradiction, match="12 slots for 16 experts: -4"):
        agreed_redundancy("qwen", [claim_of_map(12, 16)])


def test_spare_slots_and_staging_above_the_budget_are_refused_with_both_numbers() -> None:
    layers = [DenseWeights(torch.zeros(10, 4, 3), torch.zeros(10, 3, 2))] * 5
    config = cast("MoEConfig", Config())
    memory = memory_taken(layers, config, Options(staging_rows=6))
    assert (memory.per_expert, memory.spare, memory.staging) == (72, 4 * 5 * 72 // 2, 6 * 72)
    with pytest.raises(CannotOwn, match=r"take 1152 bytes .* budget of 1151 "):
        memory_taken(layers, config, Options(staging_rows=6, memory_budget_bytes=1151))
    memory_taken(layers, config, Options(staging_rows=6, memory_budget_bytes=1152))


def test_experts_by_token_are_found_under_the_names_of_both_factories() -> None:
    """vLLM's takes them itself; models for vllm-ascend hand theirs over as `tid2eid`."""
    table_VK = torch.tensor([[0, 1], [2, 3]])
    by_vllm: dict[str, object] = {"hash_indices_table": table_VK, "top_k": 2}
    assert token_table(by_vllm, ("hash_indices_table", "top_k")) is table_VK
    assert by_vllm.keys() == {"hash_indices_table", "top_k"}
    by_ascend: dict[str, object] = {"tid2eid": table_VK, "hash": True, "top_k": 2}
    assert token_table(by_ascend, ("top_k",)) is table_VK
    assert by_ascend.keys() == {"top_k"}, "vLLM's own factory takes neither"
    assert token_table({}, ("top_k",)) is None


@dataclass
class Parallel:
    tp_size: int = 2
    dp_size: int = 1
    pcp_size: int = 1
    ep_size: int = 2
    use_ep: bool = True


@dataclass
class Config:
    num_experts: int = 20
    num_logical_experts: int = 16
    num_local_experts: int = 10
    moe_parallel_config: Parallel = field(default_factory=Parallel)
    is_lora_enabled: bool = False
    skip_final_all_reduce: bool = False
    use_deferred_moe_finalize: bool = False


@dataclass
class Experts:
    expert_placement_strategy: str = "linear"


@dataclass
class Built:
    """A runner that vLLM has built, as far as these demands look at it."""

    moe_config: Config = field(default_factory=Config)
    routed_experts: Experts = field(default_factory=Experts)
    layer_name: str = "layers.3.experts"

    def as_runner(self) -> Runner:
        return cast("Runner", self)


def test_slots_that_ranks_cannot_share_evenly_are_refused_with_all_numbers() -> None:
    """Engine side of F44: 16 experts and 4 redundant ones do not lie evenly on 3 ranks."""
    odd = Built(Config(moe_parallel_config=Parallel(ep_size=3)))
    with pytest.raises(CannotOwn, match=r"16 experts and 4 redundant .* 20 slots, which 3 ranks"):
        require_built_as_needed(odd.as_runner())
    require_built_as_needed(Built().as_runner())


def test_adapters_that_would_be_left_out_are_refused() -> None:
    """vLLM applies them to experts inside the kernels that ours stand in for."""
    with pytest.raises(CannotOwn, match=r"layers\.3\.experts .*--enable-lora"):
        require_built_as_needed(Built(Config(is_lora_enabled=True)).as_runner())


def test_another_order_of_loading_is_refused() -> None:
    with pytest.raises(CannotOwn, match="round_robin"):
        require_built_as_needed(Built(routed_experts=Experts("round_robin")).as_runner())


def test_two_balancers_are_refused_with_the_redundancy_of_both() -> None:
    keywords: dict[str, object] = {"enable_eplb": True, "num_redundant_experts": 4}
    (reason,) = reasons_against(keywords, num_redundant=8)
    assert "4 redundant experts" in reason
    assert "EPLB_VLLM_REDUNDANT_EXPERTS=8" in reason


def test_an_all_reduce_that_is_left_to_the_model_is_not_given_whole_outputs() -> None:
    leaving = [Built(Config(skip_final_all_reduce=True)).as_runner()]
    require_sum_is_taken_once(leaving, is_replicated=True)
    with pytest.raises(CannotOwn, match=r"layers\.3\.experts leaves its all-reduce .*reduce_res"):
        require_sum_is_taken_once(leaving, is_replicated=False)


def test_outputs_that_the_model_wants_to_weight_itself_are_refused() -> None:
    deferring = [Built(Config(use_deferred_moe_finalize=True)).as_runner()]
    with pytest.raises(CannotOwn, match="defer_moe_finalize"):
        require_sum_is_taken_once(deferring, is_replicated=True)
