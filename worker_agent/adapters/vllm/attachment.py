"""What a worker of vLLM is bound to: an owned model, and an agent while there is one."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Protocol

from torch.distributed import ProcessGroup

from eplb_service.domain.placement import Placement
from moe_runtime.vllm import (
    CannotOwn,
    Contradiction,
    FactoryTaken,
    OwnedModel,
    StepScope,
    has_moe_layers,
    own_model,
)
from worker_agent.adapters.runtime import Seat
from worker_agent.adapters.vllm.engine import seat_of
from worker_agent.adapters.vllm.identity import Identity, VllmConfig, identity_of
from worker_agent.adapters.vllm.start_map import StartMap, layers_of, placement_at_start
from worker_agent.agent.hook import StepHook
from worker_agent.ports import engine as ports

log = logging.getLogger("vllm.plugins.eplb")
"""Below vLLM's own logger, so that its handlers print what is said here."""

ALL_ROWS = -1
AttachSeat = Callable[[Seat, Identity, ProcessGroup | None], StepHook]


class Modules(Protocol):
    """A loaded model: an nn.Module."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Yield every module with its name."""
        ...


@dataclass(slots=True)
class Attachment:
    """One worker's model and agent."""

    attach_seat: AttachSeat
    start: StartMap | None = None
    """The placement that is served from the first step on, from a file."""
    owned: OwnedModel | None = None
    hook: StepHook | None = None
    identity: Identity | None = None
    draft: "Attachment | None" = None
    """Of the model that drafts tokens for this one, where there is one with experts."""

    def bind(self, model: Modules, taken: FactoryTaken, config: VllmConfig) -> None:
        """Own a loaded model and attach. Collective over all engines.

        Raises CannotOwn, and Contradiction if a file was given and does not fit.
        """
        owned = own_model(model, taken)
        placement = None if self.start is None else placement_at_start(self.start, owned)
        self._bind(owned, placement, identity_of(config))

    def bind_draft(self, model: Modules, taken: FactoryTaken, config: VllmConfig) -> None:
        """Own a draft model beside its target, as a deployment of its own; nothing without experts.

        Its forwards come between the target's steps, so its steps are the same. A file that knows
        the target alone leaves it where it was loaded. Collective.
        """
        if not has_moe_layers(model.named_modules()):
            return
        self.draft = Attachment(self.attach_seat)
        owned = own_model(model, taken)
        self.draft._bind(owned, self._of_draft(owned), replace(identity_of(config), role="draft"))

    def _of_draft(self, owned: OwnedModel) -> Placement | None:
        if self.start is None or self.owned is None:
            return None
        own = layers_of(self.owned.stack.facts.names)
        try:
            return placement_at_start(self.start.without(own), owned)
        except Contradiction as misfit:
            log.warning("EPLB: the draft model is served where it was loaded: %s", misfit)
            return None

    def _bind(self, owned: OwnedModel, placement: Placement | None, identity: Identity) -> None:
        owned.start_in(None if placement is None else placement.phy2log.astype("int64"))
        self.owned = owned
        self.identity = replace(
            identity,
            model_layers=layers_of(owned.stack.facts.names),
            weight_format=owned.weight_format or identity.weight_format,
        )
        stack, memory = owned.stack, owned.memory
        log.info(
            "EPLB: %d MoE layers of %d experts are owned (%s): %d slots on this rank, %d filled "
            "from others, spare ones of %d bytes, %d staging rows of %d bytes, %s, %s",
            stack.facts.num_layers,
            stack.facts.num_experts,
            identity.role,
            stack.slots.num_slots,
            owned.num_filled,
            memory.spare,
            stack.slots.staging_rows,
            memory.staging,
            "tokens replicated" if stack.ranks.is_replicated else "tokens exchanged",
            "in the order of the checkpoint" if placement is None else "in the order of a file",
        )
        self.attach()

    def let_go(self) -> None:
        """Be bound to nothing any more: the model is left to vLLM alone."""
        self.detach("the model is left to vLLM alone")
        self.owned = self.identity = self.draft = None

    def attach(self) -> None:
        """Attach an agent, unless there is one, or no owned model. Collective."""
        if self.owned is None or self.identity is None or self.hook is not None:
            return
        is_shared = self.owned.stack.ranks.group.size > 1
        group = expert_group() if is_shared else own_group()
        self.hook = self.attach_seat(seat_of(self.owned), self.identity, group)
        if self.draft is not None:
            self.draft.attach()

    def detach(self, why: str) -> None:
        """End the agent, if there is one; an order that it holds is dropped with it."""
        if self.draft is not None:
            self.draft.detach(why)
        hook, self.hook = self.hook, None
        if hook is None:
            return
        if hook.state().is_migrating:
            log.warning("EPLB: the order under way is dropped, since %s", why)
        hook.close()

    def step(self, scope: StepScope, run: Callable[[], object]) -> object:
        """Run one step of the engine, with what the agent does around it."""
        if self.owned is None:
            return run()
        self.begin(scope)
        stack = self.owned.stack
        before, num_forwards = stack.enter(scope), stack.num_forwards
        try:
            returned = run()
            if stack.num_forwards == num_forwards:
                raise CannotOwn("a step", ["it ran past the owned MoE layers, in another runtime"])
            return returned
        finally:
            stack.enter(before)
            if self.hook is not None:
                self.hook.after_step(ports.StepKind(scope.kind.name.lower()))

    def begin(self, scope: StepScope) -> None:
        """Do what is due before a step; a draft's forwards come between it and the next."""
        if self.hook is not None:
            self.hook.before_step()
        if self.draft is not None and self.draft.owned is not None:
            self.draft.begin(scope)
            self.draft.owned.stack.enter(replace(scope, num_real=ALL_ROWS))

    def models(self) -> list[OwnedModel]:
        """Return what is owned: the model, and its draft."""
        drafts = [] if self.draft is None else self.draft.models()
        return drafts if self.owned is None else [self.owned, *drafts]


def expert_group() -> ProcessGroup:
    """Return the group of all ranks that hold experts, as its CPU side."""
    return import_module("vllm.distributed").get_ep_group().cpu_group


def own_group() -> ProcessGroup:
    """Return the group of this rank alone."""
    return import_module("vllm.distributed").get_tp_group().cpu_group
