"""vLLM's worker, with our steps around its own.

A worker is one process of the engine. Its instance methods are wrapped when it is built, on
any platform alike: loading binds the model and attaches the agent; running a model, or a
dummy batch where there is nothing to run, is a step; whatever else runs the model (memory
profiling, warm-up, graph capture) is none, and the agent does nothing then.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from torch.distributed import ProcessGroup

from moe_runtime.vllm import (
    CannotOwn,
    ExchangeChoice,
    FactoryTaken,
    Options,
    OwnedModel,
    Phase,
    StepKind,
    StepScope,
    Unowned,
    own_model,
    take_factory,
)
from worker_agent.adapters.runtime import Seat
from worker_agent.adapters.vllm.engine import seat_of
from worker_agent.adapters.vllm.identity import Identity, VllmConfig, identity_of
from worker_agent.agent.hook import StepHook
from worker_agent.ports import engine as ports

__all__ = ["ExchangeChoice", "Options", "OwnedWorker", "Unowned", "take_factory", "wrap_workers"]

log = logging.getLogger("vllm.plugins.eplb")
"""Below vLLM's own logger, so that its handlers print what is said here."""

Attach = Callable[[Seat, Identity, ProcessGroup | None], StepHook]


class SchedulerOutput(Protocol):
    """What the scheduler has a worker run."""

    total_num_scheduled_tokens: int
    num_scheduled_tokens: dict[str, int]


class Worker(Protocol):
    """A worker of vLLM."""

    vllm_config: VllmConfig

    def get_model(self) -> object:
        """Return the loaded model."""
        ...


@dataclass(slots=True)
class OwnedWorker:
    """One worker whose MoE layers are ours."""

    worker: Worker
    taken: FactoryTaken
    attach: Attach
    owned: OwnedModel | None = None
    hook: StepHook | None = None

    def load_model(self, original: Callable[..., object]) -> Callable[..., object]:
        """Load, then bind the model's layers and attach."""

        def load_model(*values: object, **keywords: object) -> object:
            config = self.worker.vllm_config
            if not config.model_config.is_moe:
                raise CannotOwn(
                    f"model {config.model_config.model}",
                    ["it has no MoE layers, so there is nothing to balance"],
                )
            loaded = original(*values, **keywords)
            if self.taken.declined is not None:
                log.warning(
                    "EPLB: %s is served by vLLM alone, without placements: %s",
                    config.model_config.model,
                    "; ".join(self.taken.declined.reasons),
                )
                return loaded
            self._bind(config)
            return loaded

        return load_model

    def execute_model(self, original: Callable[..., object]) -> Callable[..., object]:
        """Run a model: a step, unless nothing is scheduled and no forward follows."""

        def execute_model(output: SchedulerOutput, *values: object, **keywords: object) -> object:
            num_tokens = output.total_num_scheduled_tokens
            parallel = self.worker.vllm_config.parallel_config
            # There vLLM runs a dummy batch by itself, so that its ranks stay in step.
            runs_dummy = (
                parallel.distributed_executor_backend == "external_launcher"
                and parallel.data_parallel_size > 1
            )
            if num_tokens == 0 and not runs_dummy:
                return original(output, *values, **keywords)
            phase = Phase.DECODE
            if num_tokens > len(output.num_scheduled_tokens):
                phase = Phase.PREFILL
            kind = StepKind.REAL if num_tokens else StepKind.DUMMY
            scope = StepScope(kind, phase, num_tokens)
            return self._step(scope, lambda: original(output, *values, **keywords))

        return execute_model

    def execute_dummy_batch(self, original: Callable[..., object]) -> Callable[..., object]:
        """Run a dummy batch: a step in which this rank has nothing to do."""

        def execute_dummy_batch(*values: object, **keywords: object) -> object:
            scope = StepScope(StepKind.DUMMY, Phase.DECODE, 0)
            return self._step(scope, lambda: original(*values, **keywords))

        return execute_dummy_batch

    def compile_or_warm_up_model(self, original: Callable[..., object]) -> Callable[..., object]:
        """Warm up: no step."""

        def compile_or_warm_up_model(*values: object, **keywords: object) -> object:
            if self.owned is None:
                return original(*values, **keywords)
            stack = self.owned.stack
            before = stack.enter(StepScope(StepKind.WARMUP, Phase.DECODE, -1))
            try:
                return original(*values, **keywords)
            finally:
                stack.enter(before)

        return compile_or_warm_up_model

    def shutdown(self, original: Callable[..., object]) -> Callable[..., object]:
        """End the agent, then the worker."""

        def shutdown(*values: object, **keywords: object) -> object:
            hook, self.hook = self.hook, None
            if hook is not None:
                hook.close()
            return original(*values, **keywords)

        return shutdown

    def _bind(self, config: VllmConfig) -> None:
        model = self.worker.get_model()
        self.owned = owned = own_model(cast("Modules", model), self.taken)
        stack = owned.stack
        log.info(
            "EPLB: %d MoE layers of %d experts are owned: %d slots on this rank, %d filled from "
            "others, %d staging rows of %d bytes, %s",
            stack.facts.num_layers,
            stack.facts.num_experts,
            stack.slots.num_slots,
            owned.num_filled,
            stack.slots.staging_rows,
            owned.staging_bytes,
            "tokens replicated" if stack.ranks.is_replicated else "tokens exchanged",
        )
        group = expert_group() if stack.ranks.group.size > 1 else own_group()
        self.hook = self.attach(seat_of(owned), identity_of(config), group)

    def _step(self, scope: StepScope, run: Callable[[], object]) -> object:
        if self.owned is None or self.hook is None:
            return run()
        self.hook.before_step()
        before = self.owned.stack.enter(scope)
        try:
            return run()
        finally:
            self.owned.stack.enter(before)
            self.hook.after_step(ports.StepKind(scope.kind.name.lower()))


class Modules(Protocol):
    """A loaded model: an nn.Module."""

    def named_modules(self) -> list[tuple[str, object]]:
        """Return every module with its name."""
        ...


def expert_group() -> ProcessGroup:
    """Return the group of all ranks that hold experts, as its CPU side."""
    return import_module("vllm.distributed").get_ep_group().cpu_group


def own_group() -> ProcessGroup:
    """Return the group of this rank alone."""
    return import_module("vllm.distributed").get_tp_group().cpu_group


WRAPPED = (
    "load_model",
    "execute_model",
    "execute_dummy_batch",
    "compile_or_warm_up_model",
    "shutdown",
)


def wrap_workers(taken: FactoryTaken, attach: Attach) -> None:
    """Have every worker of this process wrapped when it is built; once, however often called."""
    base = import_module("vllm.v1.worker.worker_base").WorkerBase
    build = base.__init__
    if getattr(build, "eplb_wraps", False):
        return

    def build_wrapped(worker: object, *values: object, **keywords: object) -> None:
        build(worker, *values, **keywords)
        owned = OwnedWorker(cast("Worker", worker), taken, attach)
        vars(worker)["eplb"] = owned
        for name in WRAPPED:
            if (original := getattr(worker, name, None)) is not None:
                setattr(worker, name, getattr(owned, name)(original))

    build_wrapped.eplb_wraps = True  # pyright: ignore[reportFunctionMemberAccess]
    base.__init__ = build_wrapped
