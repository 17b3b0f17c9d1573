"""Refused as soon as vLLM knows the model, before any process or weight of it is loaded."""

import functools
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Protocol, cast

from moe_runtime.vllm import (
    CannotOwn,
    Claim,
    Contradiction,
    FactoryTaken,
    PluginError,
    Unowned,
    agreed_redundancy,
    claim_of_map,
    claim_of_setting,
)
from worker_agent.adapters.vllm.attachment import log
from worker_agent.adapters.vllm.identity import CompilationConfig, ParallelConfig, VllmConfig

__all__ = ["check_early", "require_one_balancer", "require_one_redundancy", "require_ownable"]


class Chosen(Protocol):
    """A member of one of vLLM's enums."""

    name: str
    value: object


REFUSED = 2
"""Exit code of a start that was asked for what cannot be."""


def check_early(check: Callable[[VllmConfig], None]) -> None:
    """Have every configuration checked when vLLM has made it; once, however often called.

    check    raises PluginError

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
            check(config)
        except PluginError as refused:
            log.error("EPLB: %s", refused)
            raise SystemExit(REFUSED) from refused
        return config

    create_checked.eplb_checks = True  # pyright: ignore[reportAttributeAccessIssue]
    arguments.create_engine_config = create_checked


def require_ownable(config: VllmConfig, taken: FactoryTaken) -> None:
    """Raise CannotOwn if a model has no layers for us to own and may not be left to vLLM alone."""
    reasons: list[str] = []
    if not config.model_config.is_moe:
        reasons.append("it has no MoE layers, so there is nothing to balance")
    if _told(_told(config.additional_config).get("xlite_graph_config")).get("enabled"):
        reasons.append(
            "vllm-ascend's xlite computes its MoE layers past vLLM's factory "
            "(additional_config xlite_graph_config.enabled)"
        )
    reasons.extend(_compiled(config.compilation_config))
    reasons.extend(_overlapped(config.parallel_config))
    if reasons:
        refused = CannotOwn(f"model {config.model_config.model}", reasons)
        if taken.options.unowned is Unowned.REFUSE:
            raise refused
        taken.declined = taken.declined or refused


def require_one_balancer(config: VllmConfig, chosen: str) -> None:
    """Raise Contradiction unless the balancer that was chosen is on, and no other.

    chosen    "runtime": ours moves experts; "vllm", "vllm_ascend": that one does, by our orders
    """
    on = dict(_balancers(config))
    wanted = [] if chosen == "runtime" else [chosen]
    others = [f"{on[name]} is on" for name in on if name not in wanted]
    missing = [f"{SWITCHES[name]} is off" for name in wanted if name not in on]
    if others or missing:
        raise Contradiction(
            f"EPLB_VLLM_BALANCER={chosen}",
            [*others, *missing, "one balancer, and only one, can move experts"],
        )


def require_one_redundancy(
    config: VllmConfig, *, told: int | None, map_slots: int | None = None
) -> None:
    """Raise Contradiction, with all numbers, unless all who ask for redundant experts agree.

    told         our own setting, where it is given
    map_slots    slots of each layer in a map that is to be served from the start
    """
    claims = [] if told is None else [claim_of_setting(told)]
    if map_slots is not None:
        claims.append(claim_of_map(map_slots, config.model_config.get_num_experts()))
    parallel = config.parallel_config
    theirs = parallel.eplb_config.num_redundant_experts
    if parallel.enable_eplb or theirs:
        claims.append(Claim("vLLM's eplb_config.num_redundant_experts", theirs))
    ascend = _told(_told(config.additional_config).get("eplb_config")).get("num_redundant_experts")
    if isinstance(ascend, int):
        claims.append(Claim("vllm-ascend's eplb_config.num_redundant_experts", ascend))
    agreed_redundancy(f"model {config.model_config.model}", claims)


SWITCHES = {
    "vllm": "vLLM's own balancer (--enable-eplb)",
    "vllm_ascend": "vllm-ascend's own loop (additional_config eplb_config.dynamic_eplb)",
}


def _compiled(compilation: CompilationConfig) -> Iterator[str]:
    """Yield why a forward would not be run anew in every step."""
    for name in ("mode", "cudagraph_mode"):
        chosen = cast("Chosen | None", getattr(compilation, name, None))
        if chosen is not None and chosen.value:
            yield (
                f"vLLM compiles or captures its forward (compilation_config {name}={chosen.name}), "
                "which would not exchange tokens anew in every step: set --enforce-eager"
            )


def _overlapped(parallel: ParallelConfig) -> Iterator[str]:
    """Yield why steps would not follow each other on the ranks that there were at the start."""
    told = {
        "enable_dbo": (True, "vLLM runs parts of a batch at the same time"),
        "ubatch_size": (2, "vLLM runs parts of a batch at the same time"),
        "enable_elastic_ep": (True, "ranks come and go while it serves"),
    }
    for name, (least, text) in told.items():
        if int(getattr(parallel, name, 0)) >= least:
            yield f"{text} (parallel_config {name}), which the runtime's steps do not know"


def _balancers(config: VllmConfig) -> Iterator[tuple[str, str]]:
    """Yield the balancers that a configuration turns on, by name and by switch."""
    if config.parallel_config.enable_eplb:
        yield "vllm", SWITCHES["vllm"]
    ascend = _told(_told(config.additional_config).get("eplb_config"))
    if ascend.get("dynamic_eplb") or ascend.get("expert_map_record_path"):
        yield "vllm_ascend", SWITCHES["vllm_ascend"]


def _told(value: object) -> Mapping[str, object]:
    """Return what a platform is told, where it is told by words at all."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
