"""How many slots there are beyond one for each expert: one number, whoever asks for it.

vLLM's own settings, ours and a map file can each ask. Two numbers are never reconciled: whichever
was taken, slots and map would drift apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moe_runtime.vllm.errors import Contradiction

__all__ = ["Claim", "agreed_redundancy", "claim_of_map", "claim_of_setting"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody asks for."""

    who: str
    number: int


def claim_of_setting(number: int) -> Claim:
    """Return what our own setting asks for."""
    return Claim("EPLB_VLLM_REDUNDANT_EXPERTS", number)


def claim_of_map(num_slots: int, num_experts: int) -> Claim:
    """Return what a map file leaves beside one slot for each expert."""
    told = f"the start map, with {num_slots} slots for {num_experts} experts"
    return Claim(told, num_slots - num_experts)


def agreed_redundancy(what: str, claims: Sequence[Claim]) -> int:
    """Return the number that everybody asks for, 0 where nobody does.

    Raises Contradiction with all numbers if they differ, or if a map has too few slots.

    >>> agreed_redundancy("a model", [Claim("mine", 4), Claim("yours", 4)])
    4
    """
    numbers = {claim.number for claim in claims}
    told = "; ".join(f"{claim.who}: {claim.number}" for claim in claims)
    if len(numbers) > 1:
        raise Contradiction(what, [f"numbers of redundant experts differ ({told})"])
    (number,) = numbers or {0}
    if number < 0:
        raise Contradiction(what, [f"there are fewer slots than experts ({told})"])
    return number
