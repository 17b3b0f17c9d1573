# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""vLLM's own expert balancer, lifted onto the CPU, where vLLM refuses it.

What is vLLM's: its state, its policy, its step clock, its transfer of weights, its maps. What is
ours, since vLLM has no expert-parallel kernel for CPUs: the forward, which is made to count into
vLLM's load and to follow vLLM's maps.

Axes    L MoE layers   P slots of all ranks   S local slots   E experts   J rows of a table
"""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["add_balancer", "balancer_options", "lift"]

NUM_ROWS = 12
"""Rows of a table for vLLM's maps, whose experts may have two replicas on one rank."""
Slots = npt.NDArray[np.int64]


def balancer_options(num_redundant: int, *, every: int) -> dict[str, object]:
    """Return the arguments of vLLM that turn its balancer on.

    every    steps between two rearrangements, all of which it looks back on
    """
    return {
        "enable_eplb": True,
        "eplb_config": {
            "num_redundant_experts": num_redundant,
            "step_interval": every,
            "window_size": every,
            "use_async": False,
            "communicator": "torch_nccl",  # over a CPU group it is gloo
        },
    }


def lift() -> None:
    """Lift it; before vLLM makes its configuration, with our plugin enabled."""
    import_module("worker_agent.vllm_plugin").register()
    # The plugin refuses a second balancer as soon as it sees one.
    arguments = import_module("vllm.engine.arg_utils").EngineArgs
    arguments.create_engine_config = arguments.create_engine_config.__wrapped__
    arguments.create_engine_config.eplb_checks = True
    parallel = import_module("vllm.config.parallel")
    vars(parallel)["current_platform"] = SeeminglyCuda(parallel.current_platform)
    vars(import_module("vllm.distributed.eplb.eplb_state"))["torch"] = TorchWithEvents()
    package = import_module("vllm.model_executor.layers.fused_moe")
    made = import_module("vllm.model_executor.layers.fused_moe.layer")
    ours = made.FusedMoEFactory
    replacement = _without_flags(ours)
    replacement.eplb_taken = ours.eplb_taken
    for module in (package, made):
        vars(module)["FusedMoEFactory"] = replacement


def add_balancer(worker: Any) -> Any:
    """Give a loaded worker vLLM's state, which its CPU runner does not make; return it."""
    states = import_module("vllm.distributed.eplb.eplb_state")
    runner = worker.model_runner
    state = states.EplbState(worker.vllm_config.parallel_config, runner.device)
    model = worker.get_model()
    state.add_model(model, worker.vllm_config.model_config)
    (of_model,) = state.model_states.values()
    follower = Follower(worker.eplb.owned.stack, of_model)
    state.rearrange = _then(state.rearrange, follower.follow)
    runner.eplb_step = _first(follower.count, runner.eplb_step)
    runner.eplb_state, runner._moe_model = state, model
    return state


def _then(run: Callable[..., object], after: Callable[[], None]) -> Callable[..., object]:
    def both(*values: Any, **keywords: Any) -> object:
        returned = run(*values, **keywords)
        after()
        return returned

    return both


def _first(before: Callable[[], None], run: Callable[..., object]) -> Callable[..., object]:
    def both(*values: Any, **keywords: Any) -> object:
        before()
        return run(*values, **keywords)

    return both


class Follower:
    """Makes our forward count for vLLM's balancer, and go where its maps say."""

    def __init__(self, stack: Any, state: Any) -> None:
        self._stack = stack
        self._state = state
        self._counted_LS = self._received()
        self._followed_LP: Slots = state.physical_to_logical_map.numpy().copy()
        tables = vars(vars(stack)["_state"].tables)
        tables["_tables_LEJ"] = tables["_tables_LEJ"].repeat(1, 1, NUM_ROWS)[..., :NUM_ROWS]

    def count(self) -> None:
        """Tell vLLM what this rank's slots received since it was last told."""
        now_LS = self._received()
        self._state.expert_load_pass[:, self._own()] += torch.from_numpy(now_LS - self._counted_LS)
        self._counted_LS = now_LS

    def follow(self) -> None:
        """Take over vLLM's maps; it has moved the weights, in our slots, already."""
        new_LP: Slots = self._state.physical_to_logical_map.numpy().astype(np.int64)
        if np.array_equal(new_LP, self._followed_LP):
            return
        self._followed_LP = new_LP
        held_LS = vars(self._stack.slots)["_held_LS"]
        held_LS[:] = new_LP[:, self._own()]
        for layer, row_P in enumerate(new_LP):
            table_EJ = table_of(row_P, self._stack.facts.num_experts)
            self._stack.set_table(layer, table_EJ)

    def _received(self) -> Slots:
        return self._stack.counters().received_HLS.sum(axis=0)

    def _own(self) -> slice:
        layout, rank = self._stack.layout, self._stack.ranks.group.rank
        return slice(layout.base(rank), layout.base(rank) + layout.slots_per_rank[rank])


def table_of(row_P: Slots, num_experts: int) -> list[list[int]]:
    """Return [E, J]: tokens go round the replicas of their expert."""
    places: Sequence[list[int]] = [
        np.flatnonzero(row_P == expert).tolist() for expert in range(num_experts)
    ]
    return [[slots[row % len(slots)] for row in range(NUM_ROWS)] for slots in places]


def _without_flags(ours: Callable[..., Any]) -> Any:
    """Return our factory, which sets the balancer's flags itself, for a model that passes them."""

    def make(*values: object, **keywords: object) -> object:
        keywords |= {"enable_eplb": False, "num_redundant_experts": 0}
        return ours(*values, **keywords)

    return make


class SeeminglyCuda:
    """A platform for the one check that asks whether vLLM's balancer may run."""

    def __init__(self, platform: object) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def is_cuda_alike(self) -> bool:
        """It is not."""
        return True


class TorchWithEvents:
    """torch, for a module that times itself by events of an accelerator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def Event(*, enable_timing: bool) -> "WallEvent":  # noqa: N802  the name is torch's
        """Return an event of the CPU."""
        del enable_timing
        return WallEvent()


class WallEvent:
    """A moment."""

    def __init__(self) -> None:
        self._at_s = 0.0

    def record(self) -> None:
        """It is now."""
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing runs beside."""

    def elapsed_time(self, end: "WallEvent") -> float:
        """Milliseconds until another."""
        return 1000 * (end._at_s - self._at_s)
