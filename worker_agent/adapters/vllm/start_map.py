"""A placement from a file, served from the first step on where it fits.

The file is vllm-ascend's expert map, which `eplbctl export` writes and `eplbctl map convert` makes
of others. What it says is held against the model once its layers are known.

Axes    L MoE layers   P slots of all ranks
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eplb_service.domain.errors import EplbError, InvalidMapFile, MisfitPlacement
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.map_file import MapFile, parse_map, placement_of
from eplb_service.domain.placement import Placement
from eplb_service.domain.rules import require_sound
from moe_runtime.vllm import Contradiction, OwnedModel

__all__ = ["StartMap", "layers_of", "placement_at_start", "read_start_map"]


@dataclass(frozen=True, slots=True)
class StartMap:
    """What a file says."""

    path: Path
    found: MapFile

    @property
    def num_slots(self) -> int:
        """P: slots of each layer."""
        _, ranks = self.found.layers[0]
        return sum(len(slots) for slots in ranks)

    def without(self, model_layers: Sequence[int]) -> "StartMap":
        """Return what is left for another model beside that which has these layers.

        A file that counts MoE layers from 0 is the first model's alone.
        """
        numbered = set(model_layers) <= set(self.found.layer_ids)
        taken = set(model_layers if numbered else self.found.layer_ids)
        left = tuple(row for row in self.found.layers if row[0] not in taken)
        return StartMap(self.path, MapFile(left))


def read_start_map(path: Path) -> StartMap:
    """Read a file. Raises InvalidMapFile, OSError's text included."""
    try:
        found = parse_map(path.read_text())
    except OSError as error:
        raise InvalidMapFile(f"{path} cannot be read ({error.strerror})") from error
    return StartMap(path, found)


def layers_of(names: Sequence[str]) -> tuple[int, ...]:
    """Return the model's own number of each MoE layer, as its name tells it; () if it does not.

    >>> layers_of(["model.layers.3.mlp.experts", "model.layers.4.mlp.experts"])
    (3, 4)
    """
    numbers = [[int(word) for word in name.split(".") if word.isdecimal()] for name in names]
    if any(len(found) != 1 for found in numbers):
        return ()
    layers = tuple(found[0] for found in numbers)
    return layers if list(layers) == sorted(set(layers)) else ()


def placement_at_start(start: StartMap, owned: OwnedModel) -> Placement:
    """Return what a file says of an owned model's layers; raises Contradiction if it does not fit.

    Layers are found by the model's own numbers, or counted from 0.
    """
    stack = owned.stack
    layout = SlotLayout(stack.layout.slots_per_rank)
    layers = layers_of(stack.facts.names) or tuple(range(stack.facts.num_layers))
    try:
        placement = placement_of(
            start.found, model_layers=layers, num_experts=stack.facts.num_experts
        )
        if placement.layout != layout:
            raise MisfitPlacement(
                f"its ranks have {list(placement.layout.slots_per_rank)} slots, those of the "
                f"engine {list(layout.slots_per_rank)}"
            )
        require_sound(placement)
    except EplbError as error:
        raise Contradiction(f"the start map {start.path}", [str(error)]) from error
    return placement
