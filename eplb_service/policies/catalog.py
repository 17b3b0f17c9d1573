"""The policies by name."""

from dataclasses import dataclass

from eplb_service.domain.errors import InvalidSettings, UnknownPolicy
from eplb_service.policies.connected import connected
from eplb_service.policies.greedy import greedy, greedy_by_node
from eplb_service.policies.groups import misfit
from eplb_service.policies.hierarchical import hierarchical
from eplb_service.policies.incremental import incremental
from eplb_service.policies.masking import narrowed
from eplb_service.policies.packing import packing
from eplb_service.policies.random import random
from eplb_service.policies.request import Policy, PolicyRequest
from eplb_service.policies.static import static
from eplb_service.policies.swift import swift


@dataclass(frozen=True, slots=True)
class Listed:
    """A policy under its name."""

    name: str
    draw: Policy
    needs_heat: bool
    """Whether it can do nothing sensible without load."""
    about: str


POLICIES = (
    Listed("static", static, needs_heat=False, about="change nothing"),
    Listed("packing", packing, needs_heat=True, about="pack all ranks anew"),
    Listed("hierarchical", hierarchical, needs_heat=True, about="pack groups to nodes, then ranks"),
    Listed("incremental", incremental, needs_heat=True, about="few moves, worst layers first"),
    Listed("connected", connected, needs_heat=True, about="join ranks, for shares that are set"),
    Listed("greedy", greedy, needs_heat=True, about="a baseline: pack all anew, unpolished"),
    Listed("greedy_by_node", greedy_by_node, needs_heat=True, about="a baseline: groups to nodes"),
    Listed("swift", swift, needs_heat=True, about="a baseline: originals stay, a few swaps"),
    Listed("random", random, needs_heat=False, about="a random sound placement, for tests"),
)
_BY_NODE = (hierarchical, greedy_by_node)
_BY_NAME = {listed.name: listed for listed in POLICIES}


def policy_named(name: str) -> Listed:
    """Find a policy; raises UnknownPolicy, which lists those there are."""
    if name not in _BY_NAME:
        raise UnknownPolicy(f"no policy is named {name!r}; there are: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def suited(
    name: str, request: PolicyRequest, *, is_forced: bool = False, sets_shares: bool = True
) -> tuple[Listed, str]:
    """Find the policy to use for a deployment, when it registers and not at its first plan.

    Returns it with a warning, empty where there is nothing to warn of: hierarchical
    packing gives way to packing over all ranks where groups do not divide over nodes, for which
    InvalidSettings is raised instead where the policy was forced. A policy that joins ranks for
    shares gives way, unless it was forced, to one for even shares where none are set.
    """
    listed = policy_named(name)
    if listed.draw is connected and not sets_shares and not is_forced:
        note = f"policy incremental is used instead of {name}: shares are not set here"
        return policy_named("incremental"), note
    reason = misfit(narrowed(request)) if listed.draw in _BY_NODE else ""
    if reason and is_forced:
        raise InvalidSettings(f"policy {name} was asked for and does not fit: {reason}")
    if reason:
        other = "packing" if listed.draw is hierarchical else "greedy"
        return policy_named(other), f"policy {other} is used instead of {name}: {reason}"
    return listed, ""


def unjoined(listed: Listed, request: PolicyRequest) -> str:
    """Say why a policy that joins ranks cannot join them all; empty where it can, or does not."""
    placement = narrowed(request).placement
    if listed.draw is not connected:
        return ""
    spare = int(placement.routed().sum(axis=1).min()) - placement.num_experts
    wanted = placement.layout.num_ranks - 1
    if spare >= wanted:
        return ""
    return (
        f"{spare} spare slots cannot join {wanted + 1} ranks, which takes {wanted}: shares "
        "level the load among joined ranks only"
    )
