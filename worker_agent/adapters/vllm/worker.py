"""vLLM's worker, with our steps around its own.

A worker is one process of the engine. Its instance methods are wrapped when it is built, on
any platform alike: loading binds the model and attaches the agent; running a model, or a
dummy batch where there is nothing to run, is a step; whatever else runs the model (memory
profiling, warm-up, graph capture) is none, and the agent does nothing then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from moe_runtime.vllm import (
    CannotOwn,
    ExchangeChoice,
    FactoryTaken,
    Options,
    Phase,
    StepKind,
    StepScope,
    Unowned,
    has_moe_layers,
    require_none_late,
    take_factory,
)
from worker_agent.adapters.vllm.attachment import Attachment, AttachSeat, Modules, log
from worker_agent.adapters.vllm.early import require_ownable
from worker_agent.adapters.vllm.identity import VllmConfig
from worker_agent.adapters.vllm.start_map import StartMap

__all__ = [
    "ExchangeChoice",
    "Options",
    "OwnedWorker",
    "Unowned",
    "take_factory",
    "wrap_workers",
]


class SchedulerOutput(Protocol):
    """What the scheduler has a worker run."""

    total_num_scheduled_tokens: int
    num_scheduled_tokens: dict[str, int]


class Worker(Protocol):
    """A worker of vLLM."""

    vllm_config: VllmConfig
    model_runner: object

    def get_model(self) -> Modules:
        """Return the loaded model."""
        ...


@dataclass(slots=True)
class OwnedWorker:
    """One worker whose MoE layers are ours."""

    worker: Worker
    taken: FactoryTaken
    bound: Attachment

    def load_model(self, original: Callable[..., object]) -> Callable[..., object]:
        """Load, then bind the model's layers and attach; or leave all of it to vLLM, once more."""

        def load_model(*values: object, **keywords: object) -> object:
            config = self.worker.vllm_config
            require_ownable(config, self.taken)
            try:
                require_none_late(self.taken)
                loaded = original(*values, **keywords)
                if self.taken.declined is None:
                    self._bind(config)
                    return loaded
            except CannotOwn as why:
                self.taken.leave_to_engine(why)
                self.bound.let_go()
                forget_layers(config)
                loaded = original(*values, **keywords)
            assert self.taken.declined is not None
            log.warning(
                "EPLB: %s is served by vLLM alone, without placements: %s",
                config.model_config.model,
                "; ".join(self.taken.declined.reasons),
            )
            return loaded

        return load_model

    def _bind(self, config: VllmConfig) -> None:
        model = self.worker.get_model()
        stages = config.parallel_config.pipeline_parallel_size
        if stages > 1 and not has_moe_layers(model.named_modules()):
            log.info("EPLB: this one of %d pipeline stages has no MoE layers", stages)
            return
        self.bound.bind(model, self.taken, config)
        if (draft := draft_of(self.worker)) is not None:
            self.bound.bind_draft(draft, self.taken, config)

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
            return self.bound.step(scope, lambda: original(output, *values, **keywords))

        return execute_model

    def execute_dummy_batch(self, original: Callable[..., object]) -> Callable[..., object]:
        """Run a dummy batch: a step in which this rank has nothing to do."""

        def execute_dummy_batch(*values: object, **keywords: object) -> object:
            scope = StepScope(StepKind.DUMMY, Phase.DECODE, 0)
            return self.bound.step(scope, lambda: original(*values, **keywords))

        return execute_dummy_batch

    def compile_or_warm_up_model(self, original: Callable[..., object]) -> Callable[..., object]:
        """Warm up: no step."""

        def compile_or_warm_up_model(*values: object, **keywords: object) -> object:
            if (owned := self.bound.owned) is None:
                return original(*values, **keywords)
            before = owned.stack.enter(StepScope(StepKind.WARMUP, Phase.DECODE, -1))
            try:
                return original(*values, **keywords)
            finally:
                owned.stack.enter(before)

        return compile_or_warm_up_model

    def reload_weights(self, original: Callable[..., object]) -> Callable[..., object]:
        """Load other weights into the running model; the placement stays what it was.

        The loader writes each expert into the slot of its number. So experts go home before, the
        spare slots are filled after, and experts go back to where they were; then the agent
        attaches anew.
        Collective over all engines: vLLM must be paused.
        """

        def reload_weights(*values: object, **keywords: object) -> object:
            if self.bound.owned is None:
                return original(*values, **keywords)
            self.bound.detach("weights are reloaded")
            before = [(owned, owned.served()) for owned in self.bound.models()]
            for owned, _ in before:
                owned.go_home()
            reloaded = original(*values, **keywords)
            for owned, placement in before:
                owned.refill()
                owned.return_to(placement)
            self.bound.attach()
            return reloaded

        return reload_weights

    def sleep(self, original: Callable[..., object]) -> Callable[..., object]:
        """Sleep: nothing is counted, agreed or moved until the worker wakes up."""

        def sleep(*values: object, **keywords: object) -> object:
            self.bound.detach("the engine sleeps")
            return original(*values, **keywords)

        return sleep

    def wake_up(self, original: Callable[..., object]) -> Callable[..., object]:
        """Wake up, and attach anew if the agent was let go of. Collective over all engines."""

        def wake_up(*values: object, **keywords: object) -> object:
            woken = original(*values, **keywords)
            self.bound.attach()
            return woken

        return wake_up

    def shutdown(self, original: Callable[..., object]) -> Callable[..., object]:
        """End the agent, then the worker."""

        def shutdown(*values: object, **keywords: object) -> object:
            self.bound.detach("the engine ends")
            return original(*values, **keywords)

        return shutdown


def draft_of(worker: Worker) -> Modules | None:
    """Return the model that drafts tokens, where the engine has one."""
    drafter = getattr(worker.model_runner, "drafter", None)
    return getattr(drafter, "model", None)


def forget_layers(config: VllmConfig) -> None:
    """Have vLLM forget the layers of a model that was built, so that it can be built anew."""
    compilation = config.compilation_config
    compilation.static_forward_context.clear()
    compilation.static_all_moe_layers.clear()


WRAPPED = (
    "load_model",
    "execute_model",
    "execute_dummy_batch",
    "compile_or_warm_up_model",
    "reload_weights",
    "sleep",
    "wake_up",
    "shutdown",
)


def wrap_workers(taken: FactoryTaken, attach: AttachSeat, start: StartMap | None = None) -> None:
    """Have every worker of this process wrapped when it is built; once, however often called.

    start    the placement that is served from the first step on
    """
    base = import_module("vllm.v1.worker.worker_base").WorkerBase
    build = base.__init__
    if getattr(build, "eplb_wraps", False):
        return

    def build_wrapped(worker: object, *values: object, **keywords: object) -> None:
        build(worker, *values, **keywords)
        bound = Attachment(attach, start)
        owned = OwnedWorker(cast("Worker", worker), taken, bound)
        vars(worker)["eplb"] = bound
        for name in WRAPPED:
            if (original := getattr(worker, name, None)) is not None:
                setattr(worker, name, getattr(owned, name)(original))

    build_wrapped.eplb_wraps = True  # pyright: ignore[reportFunctionMemberAccess]
    base.__init__ = build_wrapped
