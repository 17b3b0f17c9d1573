"""vLLM's own balancer, driven by our controller: its state and transfer, our placements.

For platforms on which vLLM runs its balancer (GPUs, and vllm-ascend's newer runner). Its policy is
replaced by one that returns what was ordered, or what is served, and its step by one that lets the
agent speak first and rearranges at the step on which all ranks agreed.

Axes    L layers   P slots of all ranks   S local slots   E experts
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import Order
from moe_runtime.vllm import CannotOwn, Need, UnfitEngine, engine_version, unmet
from worker_agent.adapters.runtime import Seat
from worker_agent.adapters.torch_calls import all_reduce_sum
from worker_agent.adapters.vllm.foreign import (
    Counts,
    ForeignLoop,
    ForeignShape,
    LoopSlots,
    NotCarriedOut,
    seat_of_loop,
)
from worker_agent.agent.hook import StepHook
from worker_agent.ports.engine import StepKind

__all__ = ["drive_upstream", "require_drivable"]

GATHER_EVERY = 8
"""Steps between two sums of what the slots of all ranks received."""
_STATE = "vllm.distributed.eplb.eplb_state"
_FLAGS = ("is_dummy", "is_profile", "log_stats")
NEEDS = (
    Need(_STATE, "EplbState.step", ("is_dummy", "is_profile")),
    Need(_STATE, "EplbState.rearrange", ("is_profile",)),
    Need("vllm.distributed.eplb.policy", "EPLB_POLICIES"),
    Need(
        "vllm.distributed.eplb.policy",
        "AbstractEplbPolicy.rebalance_experts",
        ("weight", "num_replicas", "num_ranks", "old_global_expert_indices"),
    ),
    Need("vllm.distributed", "get_ep_group"),
)


class Model(Protocol):
    """vLLM's MixtureOfExperts."""

    num_moe_layers: int
    num_logical_experts: int
    num_physical_experts: int
    moe_layers: Sequence[object]
    expert_weights: Sequence[Sequence[Tensor]]
    """[L] of each tensor of all local slots, [S, ...]."""


class ModelState(Protocol):
    """vLLM's EplbModelState."""

    model: Model
    physical_to_logical_map: Tensor
    """[L, P]."""
    expert_load_pass: Tensor
    """[L, P] what this rank counted since it was last cleared."""


class State(Protocol):
    """vLLM's EplbState."""

    model_states: dict[str, ModelState]
    policy: object
    is_async: bool
    should_record_tensor: Tensor | None
    step: Callable[..., None]
    rearrange: Callable[..., object]


@dataclass(slots=True)
class OrderedPolicy:
    """Meets vLLM's policy: what was ordered, or else what is served."""

    ordered: Tensor | None = None

    def rebalance_experts(
        self,
        weight: Tensor,
        num_replicas: int,
        num_groups: int,
        num_nodes: int,
        num_ranks: int,
        old_global_expert_indices: Tensor | None = None,
    ) -> Tensor:
        """Return [L, P]; of the arguments only what is served is looked at."""
        del weight, num_replicas, num_groups, num_nodes, num_ranks
        found = old_global_expert_indices if self.ordered is None else self.ordered
        assert found is not None, "vLLM tells what is served"
        return found.clone()


class UpstreamSlots(LoopSlots):
    """vLLM's expert weights by slot."""

    def __init__(self, shape: ForeignShape, model: Model) -> None:
        super().__init__(shape)
        self._model = model

    def expert_tensors(self, layer: int, local_slot: int) -> dict[str, Tensor]:
        """Return views onto one slot, numbered as vLLM's tensors are."""
        stacks = self._model.expert_weights[layer]
        return {f"{number:03}": stack[local_slot] for number, stack in enumerate(stacks)}


class UpstreamLoop(ForeignLoop):
    """vLLM's balancer on one rank."""

    def __init__(self, shape: ForeignShape, state: State, group: dist.ProcessGroup) -> None:
        (self._of_model,) = state.model_states.values()
        super().__init__(shape, UpstreamSlots(shape, self._of_model.model))
        self._state = state
        self._group = group
        self._policy = OrderedPolicy()
        self._seen_LP = torch.zeros_like(self._of_model.expert_load_pass, dtype=torch.int64)
        self._steps = 0
        self._since = 0
        state.policy = self._policy

    def slot_contents(self) -> Counts:
        """Return [L, P] as vLLM's map has it."""
        return self._of_model.physical_to_logical_map.cpu().numpy().astype(np.int64)

    def carry_out(self, order: Order, after: Placement) -> None:
        """Have vLLM move the weights and change its maps, now, on all ranks."""
        self._gather()
        self._policy.ordered = torch.tensor(after.phy2log.astype(np.int64))
        try:
            self._state.rearrange()
        finally:
            self._policy.ordered = None
        if not np.array_equal(self.slot_contents(), after.phy2log):
            raise NotCarriedOut(f"vLLM does not serve what epoch {order.epoch} ordered")

    def count(self, *, is_dummy: bool) -> None:
        """Take over what this forward counted, and clear it, as vLLM's own step does."""
        passed = self._of_model.expert_load_pass
        if not is_dummy:
            self._seen_LP += passed
            self._since += 1
        passed.zero_()
        self._steps += 1
        if self._steps % GATHER_EVERY == 0:
            self._gather()

    def record_all(self) -> None:
        """Have every step counted: vLLM counts only those that its own clock looks back on."""
        if (recording := self._state.should_record_tensor) is not None:
            recording.fill_(1)

    def _gather(self) -> None:
        """Sum over all ranks what was counted since the last time. Collective."""
        all_reduce_sum(self._seen_LP, self._group)
        self.account.add(self._seen_LP.cpu().numpy(), self.slot_contents(), steps=self._since)
        self._seen_LP.zero_()
        self._since = 0


def require_drivable(state: State) -> None:
    """Raise CannotOwn or UnfitEngine unless vLLM's balancer can be driven from outside."""
    if lacking := unmet(NEEDS):
        raise UnfitEngine(engine_version(), lacking)
    reasons: list[str] = []
    if state.is_async:
        reasons.append(
            "its transfers run beside the steps (eplb_config.use_async), so that ranks would not "
            "switch at the agreed step; expected use_async=false"
        )
    if len(state.model_states) != 1:
        reasons.append(
            f"it balances {len(state.model_states)} models together, and an order is for one; "
            "serve the draft model without --enable-eplb"
        )
    if reasons:
        raise CannotOwn("vLLM's balancer", reasons)


def drive_upstream(
    state: State,
    attach: Callable[[Seat], StepHook],
    *,
    top_k: int,
    group: dist.ProcessGroup,
    ownership: Ownership = Ownership.REPLICATED,
) -> StepHook:
    """Attach an agent to vLLM's balancer, and put it around vLLM's step. Collective.

    group    the expert-parallel group, on the device of the weights
    """
    (of_model,) = state.model_states.values()
    model, num_ranks = of_model.model, dist.get_world_size(group)
    shape = ForeignShape(
        num_layers=model.num_moe_layers,
        num_experts=model.num_logical_experts,
        num_slots=model.num_physical_experts // num_ranks,
        num_ranks=num_ranks,
        rank=dist.get_rank(group),
        top_k=top_k,
        bytes_per_expert=sum(stack[0].nbytes for stack in model.expert_weights[0]),
        adapter="vllm eplb",
        ownership=ownership,
    )
    loop = UpstreamLoop(shape, state, group)
    hook = attach(seat_of_loop(loop))
    state.step = _around(state.step, loop, hook)
    loop.record_all()
    return hook


def _around(step: Callable[..., None], loop: UpstreamLoop, hook: StepHook) -> Callable[..., None]:
    """Return vLLM's step with the agent around it; it comes after each forward."""
    has_begun = False

    def stepped(*values: object, **keywords: object) -> None:
        nonlocal has_begun
        told = dict(zip(_FLAGS, values, strict=False)) | keywords
        if told.get("is_profile"):
            step(**told)
            return
        is_dummy = bool(told.get("is_dummy"))
        if has_begun:
            hook.after_step(StepKind.DUMMY if is_dummy else StepKind.REAL)
        loop.count(is_dummy=is_dummy)
        step(**told)
        loop.record_all()
        hook.before_step()
        has_begun = True

    return stepped
