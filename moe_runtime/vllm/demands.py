"""What a built layer must be, beyond its factory's keywords, for its outputs to be right.

Each of these would otherwise be served, and be wrong: refused by name, with the numbers.
"""

from collections.abc import Iterable, Iterator, Sequence

from moe_runtime.vllm import seams
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.seams import Runner

__all__ = ["has_moe_layers", "require_built_as_needed", "require_sum_is_taken_once"]


def has_moe_layers(modules: Iterable[tuple[str, object]]) -> bool:
    """Whether vLLM's factory made any of a model's named modules."""
    base = seams.module("runner.moe_runner").MoERunner
    return any(isinstance(module, base) for _, module in modules)


def require_built_as_needed(runner: Runner) -> None:
    """Raise CannotOwn if a layer that has just been built, before loading, cannot be served."""
    if reasons := list(_against(runner)):
        raise CannotOwn(f"MoE layer {runner.layer_name}", reasons)


def _against(runner: Runner) -> Iterator[str]:
    config = runner.moe_config
    parallel = config.moe_parallel_config
    if config.is_lora_enabled:
        yield (
            "LoRA is on (--enable-lora), and adapters on experts, which vLLM applies inside its "
            "own kernels, would be left out"
        )
    if parallel.use_ep and config.num_experts % parallel.ep_size:
        redundant = config.num_experts - config.num_logical_experts
        yield (
            f"{config.num_logical_experts} experts and {redundant} redundant ones "
            f"(EPLB_VLLM_REDUNDANT_EXPERTS={redundant}) make {config.num_experts} slots, which "
            f"{parallel.ep_size} ranks cannot share evenly"
        )
    strategy = getattr(runner.routed_experts, "expert_placement_strategy", "linear")
    if strategy != "linear":
        yield (
            f"vLLM loads its experts in the order {strategy} (expert_placement_strategy), expected "
            "linear"
        )


def require_sum_is_taken_once(runners: Sequence[Runner], *, is_replicated: bool) -> None:
    """Raise CannotOwn if a caller reduces, or finishes, outputs that we hand over finished.

    is_replicated    whether outputs are this rank's part of a sum, as vLLM's own would be
    """
    reasons: list[str] = []
    for runner in runners:
        config = runner.moe_config
        if getattr(config, "use_deferred_moe_finalize", False):
            reasons.append(
                f"{runner.layer_name} leaves the weighting of its experts' outputs to the model "
                "(defer_moe_finalize), and ours are weighted already"
            )
        if getattr(config, "skip_final_all_reduce", False) and not is_replicated:
            reasons.append(
                f"{runner.layer_name} leaves its all-reduce to the model (reduce_results=False), "
                f"which would add up {config.moe_parallel_config.tp_size} or more whole outputs; "
                "exchange=replicated hands over parts of the sum"
            )
    if reasons:
        raise CannotOwn("the model", reasons)
