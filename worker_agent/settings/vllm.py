"""What the vLLM plugin can be told, by environment variables EPLB_VLLM_*."""

import os
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from eplb_service.domain.variables import misspelt

PREFIX = "EPLB_VLLM_"


class VllmSettings(BaseSettings):
    """All settings of the plugin; those of its agent are `AgentSettings`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    enabled: bool = False
    """Without it the installed package leaves vLLM as it is."""
    balancer: Literal["runtime", "vllm", "vllm_ascend"] = "runtime"
    """Who moves experts: our runtime, or the engine's own balancer by the controller's orders."""
    redundant_experts: NonNegativeInt | None = None
    """Slots beyond one for each expert, over all ranks of the group; unset: as many as a map of
    `start_map` leaves, or none."""
    start_map: Path | None = None
    """File with the placement that is served from the first step on, as vllm-ascend writes it."""
    staging_rows: PositiveInt = 8
    """Experts that one rank can receive in one wave."""
    memory_budget_mib: NonNegativeFloat = 0.0
    """Most memory that spare slots and staging may take on one rank; 0 is no bound."""
    exchange: Literal["auto", "replicated", "all_to_all"] = "auto"
    """How tokens reach experts under tensor parallelism."""
    unowned: Literal["refuse", "serve"] = "refuse"
    """What becomes of a model whose MoE layers the runtime cannot compute."""

    @model_validator(mode="before")
    @classmethod
    def _variables_are_known(cls, given: object) -> object:
        """Refuse a misspelt variable: the environment's are otherwise passed over in silence."""
        if unknown := misspelt(os.environ, own=PREFIX):
            raise ValueError("; ".join(unknown))
        return given
