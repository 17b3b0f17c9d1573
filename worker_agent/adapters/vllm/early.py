"""Refused as soon as vLLM knows the model, before any process or weight of it is loaded."""

import functools
from collections.abc import Callable
from importlib import import_module

from moe_runtime.vllm import CannotOwn, FactoryTaken, Unowned
from worker_agent.adapters.vllm.attachment import log
from worker_agent.adapters.vllm.identity import VllmConfig

__all__ = ["check_models_early", "require_experts"]

REFUSED = 2
"""Exit code of a start that was asked for what cannot be."""


def check_models_early(taken: FactoryTaken) -> None:
    """Have every configuration checked when vLLM has made it; once, however often called.

    What is refused ends the process with exit code 2, after one line in the log.
    """
    arguments = import_module("vllm.engine.arg_utils").EngineArgs
    create: Callable[..., VllmConfig] = arguments.create_engine_config
    if hasattr(create, "eplb_checks"):
        return

    @functools.wraps(create)
    def create_checked(*values: object, **keywords: object) -> VllmConfig:
        config = create(*values, **keywords)
        try:
            require_experts(config, taken)
        except CannotOwn as refused:
            log.error("EPLB: %s", refused)
            raise SystemExit(REFUSED) from refused
        return config

    create_checked.eplb_checks = True  # pyright: ignore[reportAttributeAccessIssue]
    arguments.create_engine_config = create_checked


def require_experts(config: VllmConfig, taken: FactoryTaken) -> None:
    """Raise CannotOwn if the model has no experts and may not be left to vLLM alone."""
    model = config.model_config
    if model.is_moe:
        return
    refused = CannotOwn(
        f"model {model.model}", ["it has no MoE layers, so there is nothing to balance"]
    )
    if taken.options.unowned is Unowned.REFUSE:
        raise refused
    taken.declined = taken.declined or refused
