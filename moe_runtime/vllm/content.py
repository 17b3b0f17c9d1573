"""That weights are after loading what they were when loading ended.

A platform, or another plugin, may repack weights once they are loaded. Experts that were repacked
would be moved and computed as something else, so their memory and their bytes are looked at twice:
when vLLM says that a layer is loaded, and when the whole model is bound.
"""

from dataclasses import dataclass

from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.placement.slots import digest
from moe_runtime.vllm.errors import CannotOwn

__all__ = ["Mark", "mark_of", "require_as_loaded"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a layer's experts looked like."""

    memory: tuple[tuple[str, int], ...]
    """Each tensor by name and address."""
    first: bytes
    """Digest of the first slot: what repacks weights repacks all slots."""


def mark_of(weights: ExpertWeights, layer: str) -> Mark:
    """Return a layer's mark; raises CannotOwn if its tensors are not stacked slot by slot."""
    stacks = weights.named()
    if odd := [name for name, stack in stacks.items() if not stack.is_contiguous()]:
        raise CannotOwn(
            f"MoE layer {layer}", [f"{', '.join(odd)} was repacked while it was loaded"]
        )
    memory = tuple(sorted((name, stack.data_ptr()) for name, stack in stacks.items()))
    return Mark(memory, digest({name: stack[0] for name, stack in stacks.items()}))


def require_as_loaded(weights: ExpertWeights, layer: str, loaded: Mark | None) -> None:
    """Raise CannotOwn unless a layer's experts lie where they were loaded, unchanged."""
    if loaded is None:
        raise CannotOwn(f"MoE layer {layer}", ["vLLM never said that its weights are loaded"])
    if mark_of(weights, layer) != loaded:
        raise CannotOwn(f"MoE layer {layer}", ["its weights were repacked after they were loaded"])
