"""Soundness of a placement: rules that look and never edit.

Every rule is run and everything that is wrong is reported, not just the first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eplb_service.domain.errors import InvalidPlacement, MisfitPlacement
from eplb_service.domain.placement import EMPTY, Placement


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where a placement breaks a rule."""

    rule: str
    layer: int
    text: str


Rule = Callable[[Placement], Iterator[Violation]]


def ids_are_known(placement: Placement) -> Iterator[Violation]:
    """Every slot holds a known expert or is declared empty."""
    limit = placement.num_experts + placement.num_shared
    bad = (placement.phy2log < EMPTY) | (placement.phy2log >= limit)
    ranks, local = placement.layout.rank_of_slot(), placement.layout.local_slot()
    for layer, slot in np.argwhere(bad).tolist():
        yield Violation(
            "ids_are_known",
            layer,
            f"unknown expert {placement.phy2log[layer, slot]} in rank {ranks[slot]} slot "
            f"{local[slot]}; expected 0 to {limit - 1}, or -1 for an empty slot",
        )


def every_expert_is_placed(placement: Placement) -> Iterator[Violation]:
    """Every routed expert has at least one slot."""
    for layer, expert in np.argwhere(placement.replica_count() == 0).tolist():
        yield Violation("every_expert_is_placed", layer, f"expert {expert} is missing: no slot")


def replicas_are_on_different_ranks(placement: Placement) -> Iterator[Violation]:
    """No rank holds an expert twice: a second replica there would balance nothing."""
    for rank in range(placement.layout.num_ranks):
        own = placement.phy2log[:, placement.layout.slots_of(rank)]
        ordered = np.sort(own, axis=1)
        same = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != EMPTY)
        found = {(int(layer), int(ordered[layer, at])) for layer, at in np.argwhere(same)}
        for layer, expert in sorted(found):
            yield Violation(
                "replicas_are_on_different_ranks",
                layer,
                f"duplicate: expert {expert} sits more than once on rank {rank}",
            )


RULES: tuple[Rule, ...] = (
    ids_are_known,
    every_expert_is_placed,
    replicas_are_on_different_ranks,
)


def violations(placement: Placement) -> tuple[Violation, ...]:
    """Check every rule and report everything that is wrong."""
    return tuple(violation for rule in RULES for violation in rule(placement))


def require_sound(placement: Placement) -> None:
    """Raise InvalidPlacement that lists every violation, if there is one."""
    found = violations(placement)
    if found:
        shown = "; ".join(f"layer {v.layer}: {v.text}" for v in found[:20])
        more = f"; and {len(found) - 20} more" if len(found) > 20 else ""
        raise InvalidPlacement(f"{shown}{more}; the whole placement is refused, nothing changed")


def require_fit(placement: Placement, reference: Placement) -> None:
    """Raise MisfitPlacement, with both numbers, unless shapes are those of `reference`."""
    pairs = (
        ("layers", placement.num_layers, reference.num_layers),
        ("experts", placement.num_experts, reference.num_experts),
        ("shared experts in slots", placement.num_shared, reference.num_shared),
        ("ranks", placement.layout.num_ranks, reference.layout.num_ranks),
        (
            "slots per rank",
            list(placement.layout.slots_per_rank),
            list(reference.layout.slots_per_rank),
        ),
    )
    wrong = [f"{name} {got}, expected {want}" for name, got, want in pairs if got != want]
    if wrong:
        raise MisfitPlacement(
            f"the placement does not fit the deployment: {'; '.join(wrong)}; nothing changed"
        )


def shared_slots_stay(old: Placement, new: Placement) -> Iterator[Violation]:
    """Shared experts are pinned: a plan may not move them."""
    shared = (old.phy2log >= old.num_experts) | (new.phy2log >= new.num_experts)
    for layer, slot in np.argwhere(shared & (old.phy2log != new.phy2log)).tolist():
        yield Violation(
            "shared_slots_stay",
            layer,
            f"slot {slot} holds {old.phy2log[layer, slot]} and would hold "
            f"{new.phy2log[layer, slot]}, but shared experts are pinned",
        )


def kept_experts_keep_their_slot(old: Placement, new: Placement) -> Iterator[Violation]:
    """An expert that stays on a rank keeps its slot, so that nothing is copied for nothing."""
    for rank in range(old.layout.num_ranks):
        before, after = old.expert_map(rank), new.expert_map(rank)
        moved = (before >= 0) & (after >= 0) & (before != after)
        for layer, expert in np.argwhere(moved).tolist():
            yield Violation(
                "kept_experts_keep_their_slot",
                layer,
                f"expert {expert} stays on rank {rank} but would go from local slot "
                f"{before[layer, expert]} to {after[layer, expert]}",
            )


def masked_ranks_take_nothing(
    old: Placement, new: Placement, masked: Sequence[int]
) -> Iterator[Violation]:
    """No rank that is drained or dead is given a routed expert that it does not hold already."""
    for rank in masked:
        before, after = old.expert_map(rank), new.expert_map(rank)
        for layer, expert in np.argwhere((after >= 0) & (before < 0)).tolist():
            yield Violation(
                "masked_ranks_take_nothing",
                layer,
                f"expert {expert} would go to rank {rank}, which is drained or dead",
            )


def require_unmasked(old: Placement, new: Placement, masked: Sequence[int]) -> None:
    """Raise InvalidPlacement where a rank that takes no part would be given experts."""
    found = list(masked_ranks_take_nothing(old, new, masked))
    if found:
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise InvalidPlacement(
            f"layer {found[0].layer}: {found[0].text}{more}; `eplbctl undrain` lets the rank be "
            "used again, nothing changed"
        )


def require_emptied(placement: Placement, layers: Sequence[int], masked: Sequence[int]) -> None:
    """Raise InvalidPlacement where ranks that take no part still hold routed experts."""
    for rank in masked:
        own = placement.routed()[list(layers), placement.layout.slots_of(rank)]
        if own.any():
            raise InvalidPlacement(
                f"rank {rank} is drained or dead and would keep {int(own.sum())} routed experts; "
                "expected none, nothing changed"
            )
