"""Shapes of public models, each with a deployment of a usual size."""

from collections.abc import Mapping
from dataclasses import dataclass

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.layout import SlotLayout

__all__ = ["SHAPES", "Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """One model on one expert-parallel group."""

    name: str
    num_layers: int
    num_experts: int
    num_slots: int
    num_ranks: int
    num_nodes: int
    num_groups: int = 1
    """Expert groups of the router."""
    top_k: int = 8
    num_windows: int = 9

    def __post_init__(self) -> None:
        """Raises InvalidSettings where slots do not divide over ranks, or ranks over nodes."""
        counts = (self.num_slots, self.num_ranks, self.num_nodes, self.num_groups)
        if min(counts) < 1 or self.num_slots % self.num_ranks or self.num_ranks % self.num_nodes:
            raise InvalidSettings(
                f"shape {self.name}: {self.num_slots} slots, {self.num_ranks} ranks, "
                f"{self.num_nodes} nodes, {self.num_groups} groups; expected one or more of each, "
                "slots that divide over ranks and ranks that divide over nodes"
            )

    @property
    def layout(self) -> SlotLayout:
        """The same number of slots on every rank."""
        return SlotLayout((self.num_slots // self.num_ranks,) * self.num_ranks)

    @property
    def nodes(self) -> tuple[str, ...]:
        """[N] the node of each rank."""
        per_node = self.num_ranks // self.num_nodes
        return tuple(f"node{rank // per_node:03}" for rank in range(self.num_ranks))


SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("dsv3-ep32", 58, 256, 288, 32, 4, num_groups=8),
        Shape("dsv3-ep64", 58, 256, 320, 64, 8, num_groups=8),
        Shape("k2-ep32", 60, 384, 416, 32, 4),
        Shape("k2-ep64", 60, 384, 448, 64, 8),
        Shape("qwen3-ep16", 94, 128, 160, 16, 2),
        Shape("k3-ep64", 92, 896, 960, 64, 8, top_k=16, num_windows=5),
        Shape("k3-ep128", 92, 896, 1024, 128, 16, top_k=16, num_windows=5),
        Shape("k3-ep320", 92, 896, 1280, 320, 40, top_k=16, num_windows=5),
    )
}
