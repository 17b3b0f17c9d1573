"""What the vLLM plugin is told, and what it learns from vLLM itself."""

from dataclasses import dataclass, field
from typing import cast

import pytest
from pydantic import ValidationError

from eplb_service.domain.errors import InvalidSettings
from worker_agent.adapters.vllm.identity import Identity, VllmConfig, identity_of
from worker_agent.settings.settings import AgentSettings, DeploymentSettings
from worker_agent.settings.vllm import VllmSettings
from worker_agent.vllm_plugin import register
from worker_agent.vllm_plugin.plugging import completed, options_of

FOUND = Identity(model="qwen3", role="prefill", stage=1, weight_format="bfloat16")


def test_without_its_switch_nothing_is_read_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EPLB_VLLM_ENABLED", raising=False)
    monkeypatch.setenv("EPLB_VLLM_STAGING_ROWS", "not a number")
    register()


def test_a_misspelt_switch_is_refused_and_does_not_leave_the_plugin_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EPLB_VLLM_ENABLED", raising=False)
    monkeypatch.setenv("EPLB_VLLM_ENABLE", "1")
    with pytest.raises(InvalidSettings, match="did you mean EPLB_VLLM_ENABLED"):
        register()


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPLB_VLLM_REDUNDANT", "2")
    with pytest.raises(ValidationError, match="did you mean EPLB_VLLM_REDUNDANT_EXPERTS"):
        VllmSettings()


def test_settings_reach_the_runtime() -> None:
    settings = VllmSettings(redundant_experts=4, memory_budget_mib=0.5, exchange="all_to_all")
    options = options_of(settings)
    assert (options.num_redundant, options.memory_budget_bytes) == (4, 1 << 19)
    assert options.exchange.value == "all_to_all"


def test_what_is_told_of_the_deployment_stands_above_what_vllm_knows() -> None:
    told = AgentSettings(endpoint="here:1", deployment=DeploymentSettings(model="mine", group="2"))
    deployment = completed(told, FOUND).deployment
    assert (deployment.model, deployment.group) == ("mine", "2")
    assert (deployment.role, deployment.stage) == ("prefill", 1)
    assert deployment.weight_format == "bfloat16"


@dataclass
class Model:
    model: str = "somewhere/qwen3"
    is_moe: bool = True
    dtype: object = "torch.bfloat16"
    served_model_name: str | list[str] | None = None


@dataclass
class Parallel:
    distributed_executor_backend: object = "mp"
    data_parallel_size: int = 1
    tensor_parallel_size: int = 2
    pipeline_parallel_size: int = 2
    enable_eplb: bool = False
    rank: int = 3


@dataclass
class Transfer:
    kv_role: str | None = "kv_producer"


@dataclass
class Config:
    model_config: Model = field(default_factory=Model)
    parallel_config: Parallel = field(default_factory=Parallel)
    kv_transfer_config: Transfer | None = field(default_factory=Transfer)
    additional_config: object = None


def identity(config: Config) -> Identity:
    """Of vLLM's settings as far as they are looked at; its own cannot be made without vLLM."""
    return identity_of(cast("VllmConfig", config))


def test_pools_and_pipeline_stages_are_deployments_of_their_own() -> None:
    assert identity(Config()) == FOUND
    first = identity(Config(parallel_config=Parallel(rank=1), kv_transfer_config=None))
    assert (first.role, first.stage) == ("serve", 0)
    named = identity(Config(model_config=Model(served_model_name=["prod", "other"])))
    assert named.model == "prod"
