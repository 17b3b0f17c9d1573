"""From a loaded model of vLLM to one stack of owned layers.

Axes    L layers   S local slots   P slots of all ranks   E experts   J rows of a table
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moe_runtime.backends.cpu import CpuBackend
from moe_runtime.contracts.weights import DenseWeights, ExpertWeights
from moe_runtime.exchange.all_to_all import AllToAllExchange
from moe_runtime.exchange.peers import Alone, GroupPeers, Peers
from moe_runtime.layer.given import LayerMaths, RankState
from moe_runtime.layer.layer import MoELayer
from moe_runtime.layer.parts import Direct, LayerWeights
from moe_runtime.layer.passage import Passage, Staged
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.placement.maps import DispatchTables, SlotLayout
from moe_runtime.placement.slots import ExpertSlots
from moe_runtime.routing.router import GatingPath, bind
from moe_runtime.vllm import seams
from moe_runtime.vllm.demands import require_sum_is_taken_once
from moe_runtime.vllm.errors import CannotOwn
from moe_runtime.vllm.factory import FactoryTaken
from moe_runtime.vllm.filling import Filler, initial_slots
from moe_runtime.vllm.mixins import RunnerMixin
from moe_runtime.vllm.options import ExchangeChoice, Options
from moe_runtime.vllm.placing import place
from moe_runtime.vllm.reading import Reading, common_groups, read_runner
from moe_runtime.vllm.replicated import ReplicatedExchange
from moe_runtime.vllm.seams import Coordinator, Runner
from moe_runtime.vllm.stack import OwnedStack, Ranks, StackFacts

__all__ = ["OwnedModel", "own_model"]


class Model(Protocol):
    """A loaded model: an nn.Module."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Yield every module with its name."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """The placement of a model that has just been loaded."""

    content_LP: npt.NDArray[np.int64]
    tables_LEJ: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OwnedModel:
    """What was made of a loaded model."""

    stack: OwnedStack
    filler: Filler
    home: Home
    runners: tuple[Runner, ...]
    num_filled: int
    """Slots of this rank that were filled from others after loading."""
    bytes_per_expert: int
    staging_bytes: int

    def go_home(self) -> None:
        """Return to what the loader expects: each expert in the slot of its number. Collective."""
        place(self.stack, self.filler, self.home.content_LP, self.home.tables_LEJ)

    def refill(self) -> None:
        """Fill the spare slots again, after a loader has written the others. Collective.

        Raises CannotOwn if the loader put the weights into other memory than that which is served.
        """
        moved = [
            runner.layer_name
            for layer, runner in enumerate(self.runners)
            if runner.routed_experts.w13_weight.data_ptr()
            != self.stack.slots.weights(layer).named()["w13"].data_ptr()
        ]
        if moved:
            raise CannotOwn("the reloaded model", [f"{name} lies elsewhere now" for name in moved])
        layers = [self.stack.slots.weights(i) for i in range(self.stack.facts.num_layers)]
        _fill_spare(self.filler, layers, self.home.content_LP[0], self.stack.facts.num_experts)


@dataclass(frozen=True, slots=True)
class BoundLayer:
    """One layer as its runner calls it."""

    stack: OwnedStack
    index: int

    @property
    def is_reduced(self) -> bool:
        """Whether outputs are complete, and not this rank's part of a sum."""
        return not self.stack.ranks.is_replicated

    def forward(self, x_TZ: Tensor, logits_TX: Tensor, token_ids_T: Tensor | None) -> Tensor:
        """Return [T, Z]."""
        return self.stack.forward(self.index, x_TZ, logits_TX, token_ids_T)


def own_model(model: Model, taken: FactoryTaken) -> OwnedModel:
    """Bind every MoE layer of a loaded model into one stack, and fill its spare slots.

    Collective over the expert-parallel group; for the time after loading and before memory is
    profiled, since staging rows are allocated here. Raises CannotOwn.
    """
    runners = require_all_ours(model, taken)
    options = taken.options
    ranks = ranks_of(runners, options)
    require_sum_is_taken_once(runners, is_replicated=ranks.is_replicated)
    first = runners[0].routed_experts.moe_config
    num_experts, num_slots = first.num_logical_experts, first.num_local_experts
    layout = SlotLayout((num_slots,) * ranks.group.size)
    readings = [read_runner(runner) for runner in runners]
    weights = [_weights(runner) for runner in runners]
    staging_bytes = _staging_bytes(weights[0], options)
    filler = Filler(ranks.group, layout)
    content_P = initial_slots(num_experts, layout.num_slots)
    num_filled = _fill_spare(filler, weights, content_P, num_experts)
    state = RankState(
        ExpertSlots(
            weights,
            held_LS=np.tile(_own_part(content_P, layout, ranks.group.rank), (len(runners), 1)),
            staging_rows=options.staging_rows,
            num_experts=num_experts,
        ),
        _even_tables(content_P, len(runners), layout, ranks),
        LoadCounters(num_layers=len(runners), num_slots=num_slots, num_experts=num_experts),
    )
    names = tuple(runner.layer_name for runner in runners)
    top_k, groups = runners[0].routed_experts.top_k, common_groups(readings)
    facts = StackFacts(names, num_experts, top_k, groups)
    layers = [_layer(i, reading, state) for i, reading in enumerate(readings)]
    passage, routers = _passage(layout, ranks), [runner.router for runner in runners]
    stack = OwnedStack(facts, layout, ranks, layers, passage, routers)
    for index, runner in enumerate(runners):
        vars(runner)["eplb_layer"] = BoundLayer(stack, index)
    home = Home(np.tile(content_P, (len(runners), 1)), stack.tables())
    return OwnedModel(
        stack, filler, home, tuple(runners), num_filled, _expert_bytes(weights[0]), staging_bytes
    )


def require_all_ours(model: Model, taken: FactoryTaken) -> list[Runner]:
    """Return the model's MoE layers in order; raise CannotOwn unless each of them is ours."""
    base = seams.module("runner.moe_runner").MoERunner
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, base)]
    strange = [name for name, module in found if not isinstance(module, RunnerMixin)]
    if strange:
        raise CannotOwn(
            "the model",
            [f"its MoE layers {', '.join(strange)} were not made by the replaced {taken.name}"],
        )
    if not found:
        raise CannotOwn(
            "the model", ["it has no MoE layer that vLLM's factory made, so no expert can be moved"]
        )
    runners = [cast("Runner", module) for _, module in found]
    _require_alike(runners)
    return runners


def ranks_of(runners: Sequence[Runner], options: Options) -> Ranks:
    """Return the groups of this rank, and whether ranks that share rows compute all of them."""
    parallel = runners[0].routed_experts.moe_config.moe_parallel_config
    distributed = seams.module("vllm.distributed")
    tp = cast("Coordinator", distributed.get_tp_group())
    if not parallel.use_ep:
        if tp.world_size > 1:
            raise CannotOwn(
                "the model", ["its experts are split, not placed: expert parallel is off"]
            )
        return Ranks(Alone(), Alone(), is_replicated=False)
    group = _peers(cast("Coordinator", distributed.get_ep_group()))
    if tp.world_size == 1:
        return Ranks(group, Alone(), is_replicated=False)
    against = [
        text
        for is_so, text in (
            (group.size != tp.world_size, "ranks of other engines have other tokens"),
            (
                any(runner.routed_output_transform is not None for runner in runners),
                "a transform of the routed output needs the whole sum",
            ),
        )
        if is_so
    ]
    if options.exchange is ExchangeChoice.REPLICATED and against:
        raise CannotOwn("the model", [f"exchange=replicated: {why}" for why in against])
    is_replicated = options.exchange is not ExchangeChoice.ALL_TO_ALL and not against
    return Ranks(group, _peers(tp), is_replicated=is_replicated)


def _peers(group: Coordinator) -> Peers:
    return GroupPeers(group.device_group) if group.world_size > 1 else Alone()


def _require_alike(runners: Sequence[Runner]) -> None:
    """Raise CannotOwn unless all layers have as many slots and experts of one shape."""

    def shape_of(runner: Runner) -> str:
        experts = runner.routed_experts
        config = experts.moe_config
        return (
            f"{config.num_logical_experts} experts in {config.num_experts} slots, top "
            f"{experts.top_k}, {tuple(experts.w13_weight.shape[1:])} {experts.w13_weight.dtype}"
        )

    odd = {shape_of(runner): runner.layer_name for runner in reversed(runners)}
    if len(odd) > 1:
        told = [f"{name} has {shape}" for shape, name in odd.items()]
        raise CannotOwn("the model", ["its MoE layers differ", *told])


def _weights(runner: Runner) -> DenseWeights:
    experts = runner.routed_experts
    return DenseWeights(experts.w13_weight.detach(), experts.w2_weight.detach())


def _staging_bytes(weights: DenseWeights, options: Options) -> int:
    expert = _expert_bytes(weights)
    staging, budget = expert * options.staging_rows, options.staging_budget_bytes
    if budget and staging > budget:
        raise CannotOwn(
            "the model",
            [
                f"{options.staging_rows} staging rows of {expert} bytes take {staging} bytes, more "
                f"than the budget of {budget}"
            ],
        )
    return staging


def _expert_bytes(weights: DenseWeights) -> int:
    return sum(stack[0].numel() * stack.element_size() for stack in weights.named().values())


def _fill_spare(
    filler: Filler, weights: Sequence[ExpertWeights], content_P: npt.NDArray[np.int64], num: int
) -> int:
    """Fill the slots beyond the first of each expert; only those were surely loaded."""
    loaded_P = content_P.copy()
    loaded_P[num:] = -1
    num_filled = 0
    for layer in weights:
        stacks = layer.named()
        for local_slot, tensors in filler.bring(stacks, loaded_P, content_P).items():
            num_filled += 1
            for name, tensor in tensors.items():
                stacks[name][local_slot].copy_(tensor)
    return num_filled


def _own_part(
    content_P: npt.NDArray[np.int64], layout: SlotLayout, rank: int
) -> npt.NDArray[np.int64]:
    return content_P[layout.base(rank) : layout.base(rank) + layout.slots_per_rank[rank]]


def _even_tables(
    content_P: npt.NDArray[np.int64], num_layers: int, layout: SlotLayout, ranks: Ranks
) -> DispatchTables:
    """Spread tokens evenly over replicas: by rank, or by row where ranks share rows."""
    num_rows = 12 if ranks.is_replicated else 1
    if ranks.is_replicated and ranks.group.size < 4:
        num_rows = (1, 2, 6)[ranks.group.size - 1]
    shift = 0 if ranks.is_replicated else ranks.group.rank
    table_EJ = [
        [slots[(row + shift) % len(slots)] for row in range(num_rows)]
        for slots in (
            np.flatnonzero(content_P == expert).tolist() for expert in range(content_P.max() + 1)
        )
    ]
    return DispatchTables(np.tile(np.array(table_EJ), (num_layers, 1, 1)), layout=layout)


def _layer(index: int, reading: Reading, state: RankState) -> MoELayer:
    maths = LayerMaths(reading.routing, reading.activation, CpuBackend(), time.perf_counter)
    router = bind(reading.routing, reading.tensors, path=GatingPath.FUSED_WHERE_LEGAL)
    nothing = LayerWeights(torch.empty(0), reading.tensors, Direct(), ())
    return MoELayer(index, nothing, router, maths, state)


def _passage(layout: SlotLayout, ranks: Ranks) -> Passage:
    if ranks.is_replicated:
        return Staged(ReplicatedExchange(layout, CpuBackend()))
    return Staged(AllToAllExchange(ranks.group, layout, CpuBackend()))
