"""What spare slots and staging rows of one rank take, told and bounded.

Both are there before vLLM profiles memory, so it is the cache of keys and values that they take
from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.options import Options
from moe_runtime.vllm.seams import MoEConfig

__all__ = ["Memory", "memory_taken"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that one rank has beside one slot for each expert."""

    per_expert: int
    spare: int
    """Of this rank's part of all slots beyond one for each expert, over all layers."""
    staging: int


def memory_taken(layers: Sequence[ExpertWeights], config: MoEConfig, options: Options) -> Memory:
    """Return what is taken; raises CannotOwn, with all numbers, if it is above the budget."""
    expert = sum(stack[0].numel() * stack.element_size() for stack in layers[0].named().values())
    num_ranks = config.num_experts // config.num_local_experts
    num_spare = config.num_experts - config.num_logical_experts
    spare = -(-num_spare * len(layers) * expert // num_ranks)
    memory = Memory(expert, spare, staging=expert * options.staging_rows)
    budget = options.memory_budget_bytes
    if budget and memory.spare + memory.staging > budget:
        raise CannotOwn(
            "the model",
            [
                f"spare slots of {memory.spare} bytes ({num_spare} redundant experts in "
                f"{len(layers)} layers over {num_ranks} ranks) and {options.staging_rows} staging "
                f"rows of {expert} bytes take {memory.spare + memory.staging} bytes on each rank, "
                f"more than the budget of {budget} (EPLB_VLLM_MEMORY_BUDGET_MIB)"
            ],
        )
    return memory
