"""Whether vLLM is as the plugin needs it: every name that is relied on, asked for at a start.

Most of these names are private to vLLM, and may change with any version. Where one has, nothing is
replaced and the difference is named, so that no renamed symbol ends in a wrong answer.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moe_runtime.vllm import seams

__all__ = ["Need", "differences", "unmet"]


@dataclass(frozen=True, slots=True)
class Need:
    """A name that must be there, and the parameters that it must take."""

    where: str
    """Module, below vLLM's fused_moe package unless it begins with vllm."""
    name: str
    """Dotted, within the module."""
    takes: tuple[str, ...] = ()


NEEDS = (
    Need(
        "runner.moe_runner",
        "MoERunner.__init__",
        (
            "layer_name",
            "moe_config",
            "router",
            "routed_experts",
            "gate",
            "shared_experts",
            "routed_output_transform",
        ),
    ),
    Need(
        "runner.moe_runner",
        "MoERunner._forward_impl",
        ("hidden_states", "router_logits", "shared_experts_input", "input_ids"),
    ),
    Need("runner.moe_runner", "MoERunner._fused_output_is_reduced"),
    Need("runner.shared_experts", "SharedExpertsOrder.NO_OVERLAP"),
    Need("runner.shared_experts", "SharedExperts.forward", ("shared_experts_input", "order")),
    Need("runner.shared_experts", "SharedExperts.output"),
    Need("router.base_router", "BaseRouter.set_capture_fn", ("capture_fn",)),
    Need(
        "routed_experts",
        "RoutedExperts.__init__",
        (
            "layer_name",
            "moe_config",
            "quant_config",
            "ckpt_gate_proj_name",
            "ckpt_up_proj_name",
            "ckpt_down_proj_name",
            "renormalize",
            "use_grouped_topk",
            "num_expert_group",
            "topk_group",
            "custom_routing_function",
            "scoring_func",
            "routed_scaling_factor",
            "e_score_correction_bias",
            "apply_router_weight_on_input",
        ),
    ),
    Need(
        "routed_experts",
        "RoutedExperts._get_quant_method",
        ("prefix", "quant_config", "moe_config"),
    ),
    Need("routed_experts", "RoutedExperts._map_global_expert_id_to_local_expert_id"),
    Need(
        "config",
        "FusedMoEConfig.__init__",
        (
            "num_experts",
            "num_logical_experts",
            "num_local_experts",
            "moe_parallel_config",
            "in_dtype",
            "device",
            "has_bias",
            "is_lora_enabled",
            "swiglu_limit",
            "swiglu_alpha",
            "swiglu_beta",
            "activation_situ_beta",
            "activation_situ_linear_beta",
        ),
    ),
    Need("config", "FusedMoEConfig.is_sequence_parallel"),
    Need(
        "config",
        "FusedMoEParallelConfig.__init__",
        ("tp_size", "dp_size", "pcp_size", "ep_size", "use_ep"),
    ),
    Need("fused_moe_method_base", "FusedMoEMethodBase.__init__", ("moe",)),
    Need("fused_moe_method_base", "FusedMoEMethodBase.maybe_roundup_sizes"),
    Need("fused_moe_method_base", "FusedMoEMethodBase.get_fused_moe_quant_config", ("layer",)),
    Need(
        "unquantized_fused_moe_method",
        "UnquantizedFusedMoEMethod.create_weights",
        ("layer", "num_experts", "hidden_size", "intermediate_size_per_partition"),
    ),
    Need("vllm.engine.arg_utils", "EngineArgs.create_engine_config"),
    Need("vllm.config", "ModelConfig.is_moe"),
    Need("vllm.config", "ModelConfig.get_num_experts"),
    Need("vllm.config", "ParallelConfig.eplb_config"),
    Need("vllm.config", "CompilationConfig.mode"),
    Need("vllm.config", "CompilationConfig.cudagraph_mode"),
    Need("vllm.config", "CompilationConfig.static_forward_context"),
    Need("vllm.config", "CompilationConfig.static_all_moe_layers"),
    Need("vllm.v1.worker.worker_base", "WorkerBase.get_model"),
    Need("vllm.v1.worker.worker_base", "WorkerBase.load_model"),
    Need("vllm.v1.worker.worker_base", "WorkerBase.execute_model", ("scheduler_output",)),
    Need("vllm.v1.worker.worker_base", "WorkerBase.compile_or_warm_up_model"),
    Need("vllm.v1.worker.worker_base", "WorkerBase.shutdown"),
    Need("vllm.v1.core.sched.output", "SchedulerOutput.total_num_scheduled_tokens"),
    Need("vllm.v1.core.sched.output", "SchedulerOutput.num_scheduled_tokens"),
    Need("vllm.distributed", "get_ep_group"),
    Need("vllm.distributed", "get_tp_group"),
    Need("vllm.distributed.parallel_state", "GroupCoordinator.cpu_group"),
    Need("vllm.distributed.parallel_state", "GroupCoordinator.device_group"),
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


def differences() -> tuple[str, ...]:
    """Return everything in which this vLLM is not as the plugin needs it; empty where it fits."""
    return tuple(_differences())


def _differences() -> Iterator[str]:
    name = seams.factory_name()
    if name is None:
        yield f"{seams.MOE}.layer has none of {', '.join(seams.FACTORIES)}"
    else:
        made, package = seams.layers()
        yield from _lacking(f"{seams.MOE}.layer.{name}", getattr(made, name), FACTORY_TAKES)
        if getattr(package, name, None) is not getattr(made, name):
            yield f"{seams.MOE}.{name} is not {seams.MOE}.layer.{name}"
    yield from unmet(NEEDS)


def unmet(needs: Sequence[Need]) -> tuple[str, ...]:
    """Return which of these names are not as they must be."""
    return tuple(text for need in needs for text in _unmet(need))


def _unmet(need: Need) -> Iterator[str]:
    full = f"{need.where}.{need.name}"
    try:
        found: object = seams.module(need.where)
    except ImportError as error:
        yield f"{need.where} cannot be imported ({error})"
        return
    for part in need.name.split("."):
        if not hasattr(found, part) and part not in _annotated(found):
            yield f"{full} is missing"
            return
        found = getattr(found, part, None)
    if need.takes:
        yield from _lacking(full, found, need.takes)


def _annotated(found: object) -> Iterator[str]:
    """Yield what instances of a class have by its annotations alone, its bases' among them."""
    for base in found.__mro__ if isinstance(found, type) else ():
        yield from inspect.get_annotations(base)


def _lacking(full: str, found: object, takes: tuple[str, ...]) -> Iterator[str]:
    if not callable(found):
        yield f"{full} cannot be called"
        return
    parameters = inspect.signature(found).parameters
    if missing := [name for name in takes if name not in parameters]:
        yield f"{full} takes no {', '.join(missing)}"
