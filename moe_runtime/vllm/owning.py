"""From a loaded model of vLLM to one stack of owned layers.

Axes    L layers   P slots of all ranks   E experts   J rows of a table
"""

import zlib
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.vllm.binding import Loaded, Map, bind_stack, even_tables, fill_spare
from moe_runtime.vllm.content import Mark, require_as_loaded
from moe_runtime.vllm.demands import require_sum_is_taken_once
from moe_runtime.vllm.errors import CannotOwn, Contradiction
from moe_runtime.vllm.factory import FactoryTaken
from moe_runtime.vllm.families import MovingLink, Parts
from moe_runtime.vllm.filling import Filler
from moe_runtime.vllm.formats import format_of, weights_of
from moe_runtime.vllm.grouping import hosts_of, ranks_in_world, ranks_of
from moe_runtime.vllm.judging import require_on_device
from moe_runtime.vllm.memory import Memory, memory_taken
from moe_runtime.vllm.placing import place
from moe_runtime.vllm.proving import Model, require_all_ours
from moe_runtime.vllm.reading import common_groups, read_runner
from moe_runtime.vllm.seams import Runner
from moe_runtime.vllm.stack import OwnedStack, StackFacts

__all__ = ["OwnedModel", "ServedPlacement", "own_model"]


@dataclass(frozen=True, slots=True, eq=False)
class ServedPlacement:
    """What all slots hold, and which of them this rank uses."""

    content_LP: Map
    tables_LEJ: Map


@dataclass(frozen=True, slots=True)
class OwnedModel:
    """What was made of a loaded model."""

    stack: OwnedStack
    filler: Filler
    home: ServedPlacement
    """What it was loaded in."""
    runners: tuple[Runner, ...]
    num_filled: int
    """Slots of this rank that were filled from others after loading."""
    memory: Memory
    weight_format: str
    """How experts are stored; empty where they are in the model's own dtype."""
    moving: MovingLink | None = None
    """How weights move from device to device; None: through the memory of hosts."""

    def start_in(self, phy2log_LP: Map | None) -> None:
        """Serve a placement that comes from elsewhere, its tokens spread evenly. Collective.

        phy2log_LP    [L, P], sound and of this layout; None: what was loaded is served

        Raises Contradiction, on all ranks and with nothing moved, if they were given others.
        """
        group = self.filler.peers
        mark = 0 if phy2log_LP is None else zlib.crc32(phy2log_LP.tobytes()) + 1
        marks = group.all_gather(torch.tensor([[mark]]), [1] * group.size)
        if (marks != mark).any():
            raise Contradiction(
                "the start map", ["the ranks of the group were given different ones"]
            )
        if phy2log_LP is not None:
            facts, ranks = self.stack.facts, self.stack.ranks
            tables_LEJ = even_tables(phy2log_LP, facts.num_experts, ranks)
            self.return_to(ServedPlacement(phy2log_LP, tables_LEJ))

    def served(self) -> ServedPlacement:
        """Return the placement that is served now. Collective."""
        return ServedPlacement(self.filler.gather_held(self.stack.held()), self.stack.tables())

    def go_home(self) -> None:
        """Return to what the loader expects: each expert in the slot of its number. Collective."""
        self.return_to(self.home)

    def return_to(self, placement: ServedPlacement) -> None:
        """Bring every expert to where this placement has it. Collective."""
        place(self.stack, self.filler, placement.content_LP, placement.tables_LEJ)

    def refill(self) -> None:
        """Fill the spare slots again, after a loader has written the others. Collective.

        Raises CannotOwn if the loader put the weights into other memory than that which is served.
        """
        layers = [self.stack.slots.weights(i) for i in range(self.stack.facts.num_layers)]
        moved = [
            runner.layer_name
            for runner, served in zip(self.runners, layers, strict=True)
            if _addresses(weights_of(runner.routed_experts).named()) != _addresses(served.named())
        ]
        if moved:
            raise CannotOwn("the reloaded model", [f"{name} lies elsewhere now" for name in moved])
        fill_spare(self.filler, layers, self.home.content_LP[0], self.stack.facts.num_experts)


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
    parts = cast("Parts", vars(runners[0])["eplb_parts"])
    ranks = ranks_of(runners, taken.options)
    if parts.kind is not DeviceKind.CPU:
        ranks = replace(ranks, hosts=hosts_of(runners))
    require_sum_is_taken_once(runners, is_replicated=ranks.is_replicated)
    readings = [read_runner(runner) for runner in runners]
    require_on_device(runners, readings, ranks, parts)
    weights = [weights_of(runner.routed_experts) for runner in runners]
    for runner, loaded in zip(runners, weights, strict=True):
        mark = cast("Mark | None", vars(runner.routed_experts).get("eplb_loaded"))
        require_as_loaded(loaded, runner.layer_name, mark)
    first = runners[0].routed_experts
    memory = memory_taken(weights, first.moe_config, taken.options)
    names = tuple(runner.layer_name for runner in runners)
    groups = common_groups(readings)
    facts = StackFacts(names, first.moe_config.num_logical_experts, first.top_k, groups, parts.home)
    routers = [runner.router for runner in runners]
    bound = bind_stack(
        Loaded(facts, weights, readings, routers),
        ranks,
        staging_rows=taken.options.staging_rows,
        parts=parts,
    )
    for index, runner in enumerate(runners):
        vars(runner)["eplb_layer"] = BoundLayer(bound.stack, index)
    content_LP = np.tile(bound.content_P, (len(runners), 1))
    home = ServedPlacement(content_LP, bound.stack.tables())
    return OwnedModel(
        bound.stack,
        bound.filler,
        home,
        tuple(runners),
        bound.num_filled,
        memory,
        weight_format=format_of(first),
        moving=parts.moving(ranks_in_world(runners)),
    )


def _addresses(stacks: dict[str, Tensor]) -> dict[str, int]:
    return {name: stack.data_ptr() for name, stack in stacks.items()}
