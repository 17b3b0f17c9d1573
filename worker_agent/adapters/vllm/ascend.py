"""vllm-ascend's own balancing loop, driven by our controller in the place of its planner process.

For users who keep vllm-ascend's first model runner. Once in a cycle its loop takes a list from its
planner, one tuple for each layer, and brings one layer after the other to what the tuple says, one
in each forward. Here that list is made of our order if all ranks have agreed on one, and changes
nothing otherwise, so that no forward waits for a planner. One step of the agent is one cycle.

Axes    L layers   N ranks   S local slots   P slots of all ranks   E experts   T samples
"""

import os
from collections.abc import Callable, MutableMapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership
from eplb_service.domain.wave import Order
from moe_runtime.vllm import CannotOwn, Need, UnfitEngine, engine_version, unmet
from worker_agent.adapters.runtime import Seat
from worker_agent.adapters.vllm.ascend_rules import load_fault, order_fault
from worker_agent.adapters.vllm.ascend_tuples import (
    LayerUpdate,
    contents_of,
    maps_of,
    updates_of,
)
from worker_agent.adapters.vllm.foreign import (
    Counts,
    ForeignLoop,
    ForeignShape,
    LoopSlots,
    seat_of_loop,
)
from worker_agent.agent.hook import StepHook

__all__ = ["AscendLoop", "OrderedPlanner", "replace_planner"]

_RUNNER = "vllm_ascend.worker.model_runner_v1"
_EPLB = "vllm_ascend.eplb"
NEEDS = (
    Need(_RUNNER, "EplbProcess.__init__", ("shared_dict", "policy_type", "enable_d2d", "tp_size")),
    Need(_RUNNER, "EplbProcess._launch_process"),
    Need(_RUNNER, "EplbUpdator.__init__", ("eplb_config", "loader", "eplb_process", "process")),
    Need(_RUNNER, "EplbUpdator.warm_up_eplb"),
    *(
        Need(f"{_EPLB}.eplb_updator", f"EplbUpdator.{name}")
        for name in ("get_update_info_flag", "wakeup_eplb_worker_flag", "forward_before")
    ),
    Need(
        f"{_EPLB}.core.eplb_device_transfer_loader",
        "D2DExpertWeightLoader.generate_expert_d2d_transfer_task",
        ("expert_send_info", "expert_recv_info", "updated_expert_map", "layer_id"),
    ),
    Need(
        f"{_EPLB}.core.eplb_device_transfer_loader",
        "D2DExpertWeightLoader.set_log2phy_map",
        ("log2phy_map",),
    ),
    Need(f"{_EPLB}.adaptor.vllm_adaptor", "VllmEplbAdaptor.get_global_expert_map"),
    Need(f"{_EPLB}.adaptor.vllm_adaptor", "VllmEplbAdaptor.get_rank_expert_workload"),
)
"""Seen in vllm-ascend 0.25.1rc1, whose loop is that of commit e3bb5f570f0b."""


class Group(Protocol):
    """vllm-ascend's group of all ranks that hold experts."""

    world_size: int
    rank_in_group: int


class Adaptor(Protocol):
    """VllmEplbAdaptor."""

    num_moe_layers: int
    num_local_experts: int
    moe_layers: Sequence[Any]
    expert_param_per_layer: dict[int, list[list[Tensor]]]
    expert_map_per_layer_cpu: dict[int, Tensor]
    log2phy_map_per_layer: dict[int, Tensor]


class LoopSettings(Protocol):
    """EplbConfig."""

    expert_heat_collection_interval: int
    algorithm_execution_interval: int
    expert_map_record_path: str | None


class Updator(Protocol):
    """EplbUpdator."""

    adaptor: Adaptor
    comm_group: Group
    eplb_config: LoopSettings
    eplb_process: "OrderedPlanner"


class AscendSlots(LoopSlots):
    """vllm-ascend's expert weights by slot."""

    def __init__(self, shape: ForeignShape, adaptor: Adaptor) -> None:
        super().__init__(shape)
        self._adaptor = adaptor

    def expert_tensors(self, layer: int, local_slot: int) -> dict[str, Tensor]:
        """Return views onto one slot, numbered as vllm-ascend's tensors are."""
        parts = self._adaptor.expert_param_per_layer[layer][local_slot]
        return {f"{number:03}": part for number, part in enumerate(parts)}


class AscendLoop(ForeignLoop):
    """vllm-ascend's loop on one rank."""

    def __init__(
        self, shape: ForeignShape, adaptor: Adaptor, shared: MutableMapping[str, Any]
    ) -> None:
        super().__init__(shape, AscendSlots(shape, adaptor))
        self._adaptor = adaptor
        self._shared = shared
        self._contents = contents_of(shared["expert_maps"], shape.num_slots)
        self._ordered: dict[int, LayerUpdate] = {}

    def slot_contents(self) -> Counts:
        """Return [L, P] as the loop was last told it."""
        return self._contents.copy()

    def carry_out(self, order: Order, after: Placement) -> None:
        """Have the loop do it in the forwards that follow, one layer in each."""
        self._ordered = updates_of(order, after, self.shape)
        self._contents = after.phy2log.astype(np.int64)
        self._shared["expert_maps"] = maps_of(after, self._shared["expert_maps"])

    def count(self) -> None:
        """Take over what the loop has gathered from all ranks; it clears it by itself."""
        load: Tensor = self._shared["moe_load"]
        samples = load.sum(0) if load.dim() == 4 else load
        received = samples.numpy().astype(np.int64).reshape(self._contents.shape)
        self.account.add(received, self._contents, steps=1)

    def take_updates(self) -> list[LayerUpdate]:
        """Return one tuple for each layer, and forget what was ordered."""
        ordered, self._ordered = self._ordered, {}
        return [
            ordered.get(layer) or self._unchanged(layer) for layer in range(self.shape.num_layers)
        ]

    def _unchanged(self, layer: int) -> LayerUpdate:
        held: list[int] = self._adaptor.expert_map_per_layer_cpu[layer].numpy().tolist()
        targets: list[int] = self._adaptor.log2phy_map_per_layer[layer].cpu().numpy().tolist()
        return [], [], held, targets, layer


class OrderedPlanner:
    """In the place of EplbProcess: no process, and nobody waits for it."""

    def __init__(
        self,
        shared_dict: MutableMapping[str, Any],
        policy_type: int = 0,
        enable_d2d: bool = True,  # noqa: FBT001, FBT002  the signature is vllm-ascend's
        tp_size: int | None = None,
    ) -> None:
        del policy_type, enable_d2d, tp_size
        self.shared_dict = shared_dict
        self._loop: AscendLoop | None = None
        self._hook: StepHook | None = None
        self.planner_q = self
        self.block_update_q = self

    def attach(self, updator: Updator, attach: Callable[[Seat], StepHook], *, top_k: int) -> None:
        """Attach an agent once the loop is warm. Collective; raises CannotOwn."""
        shape = shape_of(updator, top_k=top_k)
        maps = self.shared_dict["expert_maps"]
        if reasons := [*settings_faults(updator.eplb_config), *load_fault(maps, shape)]:
            raise CannotOwn("vllm-ascend's balancing loop", reasons)
        loop = AscendLoop(shape, updator.adaptor, self.shared_dict)
        self._hook = attach(seat_of_loop(loop, fault=order_fault))
        self._loop = loop

    def put(self, word: object) -> None:
        """Be woken: load has been gathered. At the same forward on all ranks."""
        del word
        self._bound().count()

    def get(self) -> list[LayerUpdate]:
        """Return what the loop is to do. At the same forward on all ranks; it agrees, no more."""
        loop = self._bound()
        assert self._hook is not None
        self._hook.before_step()
        return loop.take_updates()

    def _launch_process(self) -> "NoProcess":
        return NoProcess()

    def _bound(self) -> AscendLoop:
        assert self._loop is not None, "a cycle ended before the loop was warm"
        return self._loop


class NoProcess:
    """What vllm-ascend takes for its planner's process."""

    pid = os.getpid()

    def is_alive(self) -> bool:
        """There is none to be ended."""
        return False


def replace_planner(attach: Callable[[Seat], StepHook], *, top_k: Callable[[Any], int]) -> None:
    """Replace the planner in vllm-ascend's runner; once, however often called.

    top_k    reads it from one of vllm-ascend's MoE layers

    Raises UnfitEngine, with nothing replaced, if this vllm-ascend is not as it must be.
    """
    if lacking := unmet(NEEDS):
        raise UnfitEngine(engine_version(), lacking)
    runner = vars(import_module(_RUNNER))
    if runner["EplbProcess"] is OrderedPlanner:
        return
    base: Any = runner["EplbUpdator"]

    def warm_up_eplb(self: Any) -> None:  # noqa: ANN401  vllm-ascend's own class
        base.warm_up_eplb(self)
        self.eplb_process.attach(self, attach, top_k=top_k(self.adaptor.moe_layers[0]))

    runner["EplbProcess"] = OrderedPlanner
    runner["EplbUpdator"] = type("OrderedUpdator", (base,), {"warm_up_eplb": warm_up_eplb})


def shape_of(updator: Updator, *, top_k: int) -> ForeignShape:
    """Return what the loop balances."""
    adaptor, group = updator.adaptor, updator.comm_group
    parts = adaptor.expert_param_per_layer[0][0]
    return ForeignShape(
        num_layers=adaptor.num_moe_layers,
        num_experts=int(adaptor.expert_map_per_layer_cpu[0].numel()),
        num_slots=adaptor.num_local_experts,
        num_ranks=group.world_size,
        rank=group.rank_in_group,
        top_k=top_k,
        bytes_per_expert=sum(part.nbytes for part in parts),
        adapter="vllm-ascend",
        ownership=Ownership.OWN,
    )


def settings_faults(settings: LoopSettings) -> list[str]:
    """Return with which settings the loop would stand still, or drop what it is ordered."""
    found = [
        f"{name} is {value}, with which the loop never takes an order; expected at least 1"
        for name, value in (
            ("expert_heat_collection_interval", settings.expert_heat_collection_interval),
            ("algorithm_execution_interval", settings.algorithm_execution_interval),
        )
        if value < 1
    ]
    if settings.expert_map_record_path is not None:
        found.append(
            "expert_map_record_path is set, and a loop that records never puts in use what it has "
            "moved; `eplbctl export` writes the same file"
        )
    return found
