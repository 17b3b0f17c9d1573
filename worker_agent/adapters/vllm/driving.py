"""An engine that keeps its own balancer, driven by our controller: once its model is loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from moe_runtime.vllm import CannotOwn, UnfitEngine, engine_version
from worker_agent.adapters.runtime import Seat
from worker_agent.adapters.vllm.ascend import replace_planner
from worker_agent.adapters.vllm.attachment import AttachSeat, expert_group
from worker_agent.adapters.vllm.early import SWITCHES
from worker_agent.adapters.vllm.identity import VllmConfig, identity_of
from worker_agent.adapters.vllm.upstream import State, drive_upstream, require_drivable
from worker_agent.agent.hook import StepHook

__all__ = ["drive_ascend", "drive_vllm"]


class Runner(Protocol):
    """A model runner of vLLM."""

    eplb_state: State | None


class Worker(Protocol):
    """A worker of vLLM."""

    vllm_config: VllmConfig
    model_runner: Runner
    load_model: Callable[..., object]


@dataclass(slots=True)
class Attaching:
    """Attaches to an engine's loop, as the deployment of the worker of this process."""

    attach: AttachSeat
    config: VllmConfig | None = None

    def __call__(self, seat: Seat) -> StepHook:
        """Attach. Collective."""
        assert self.config is not None, "a loop was warm before its worker was built"
        return self.attach(seat, identity_of(self.config), expert_group())


def drive_vllm(attach: AttachSeat) -> None:
    """Drive vLLM's own balancer in every worker of this process."""
    attaching = Attaching(attach)

    def build(worker: Worker) -> None:
        attaching.config = worker.vllm_config
        load = worker.load_model

        def load_model(*values: object, **keywords: object) -> object:
            loaded = load(*values, **keywords)
            drive_loaded(worker.model_runner.eplb_state, attaching)
            return loaded

        worker.load_model = load_model

    _on_workers(build)


def drive_loaded(state: State | None, attach: Callable[[Seat], StepHook]) -> StepHook:
    """Drive the balancer of a loaded model. Collective; raises CannotOwn and UnfitEngine."""
    if state is None:
        raise CannotOwn("vLLM's balancer", [f"{SWITCHES['vllm']} has no state for this model"])
    require_drivable(state)
    (of_model,) = state.model_states.values()
    group = import_module("vllm.distributed").get_ep_group().device_group
    top_k = top_k_of(of_model.model.moe_layers[0])
    return drive_upstream(state, attach, top_k=top_k, group=group)


def drive_ascend(attach: AttachSeat) -> None:
    """Drive vllm-ascend's own loop in every worker of this process."""
    attaching = Attaching(attach)

    def build(worker: Worker) -> None:
        attaching.config = worker.vllm_config
        replace_planner(attaching, top_k=top_k_of)

    _on_workers(build)


def top_k_of(layer: Any) -> int:  # noqa: ANN401  a MoE layer of any version
    """Return how many experts a token takes, where the layer or its experts say so."""
    for holder in (layer, getattr(layer, "routed_experts", None)):
        if (found := getattr(holder, "top_k", None)) is not None:
            return int(found)
    raise UnfitEngine(engine_version(), [f"{type(layer).__name__} has no top_k"])


def _on_workers(build: Callable[[Worker], None]) -> None:
    """Have every worker looked at when it has been built; once, however often called."""
    base = import_module("vllm.v1.worker.worker_base").WorkerBase
    original = base.__init__
    if getattr(original, "eplb_wraps", False):
        return

    def build_wrapped(worker: object, *values: object, **keywords: object) -> None:
        original(worker, *values, **keywords)
        build(cast("Worker", worker))

    build_wrapped.eplb_wraps = True  # pyright: ignore[reportFunctionMemberAccess]
    base.__init__ = build_wrapped
