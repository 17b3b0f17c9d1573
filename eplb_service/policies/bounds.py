"""What a placement may not do, whoever draws it, and where ranks stand.

Axes    N ranks
"""

from dataclasses import dataclass

from eplb_service.domain.errors import InvalidRequest, InvalidSettings, InvalidTable


@dataclass(frozen=True, slots=True)
class Bounds:
    """Hard limits of a plan; None for as many as needed."""

    masked: tuple[int, ...] = ()
    """Ranks that are to hold no routed expert: drained, or dead. Ascending."""
    refilled: tuple[int, ...] = ()
    """Ranks whose empty slots are to be filled: drained before, and back. Ascending."""
    per_layer: int | None = None
    """Slots of one layer that may get another expert, beside what emptying ranks takes."""
    per_rank: int | None = None
    """Slots of one rank that may, in all layers, beside what emptying ranks takes."""

    def require_fit(self, num_ranks: int) -> None:
        """Raise InvalidRequest for ranks that there are not, or that are both.

        Raises InvalidSettings for a budget below 0.
        """
        for what, most in (("layer", self.per_layer), ("rank", self.per_rank)):
            if most is not None and most < 0:
                raise InvalidSettings(f"a budget of {most} moves per {what}; expected 0 or more")
        for rank in (*self.masked, *self.refilled):
            if not 0 <= rank < num_ranks:
                raise InvalidRequest(f"rank {rank} does not exist; there are 0 to {num_ranks - 1}")
        for ranks in (self.masked, self.refilled):
            if list(ranks) != sorted(set(ranks)):
                raise InvalidRequest(f"ranks {list(ranks)}; expected each once, ascending")
        both = sorted(set(self.masked) & set(self.refilled))
        if both:
            raise InvalidRequest(f"ranks {both} are masked and cannot be filled too")


UNBOUNDED = Bounds()


@dataclass(frozen=True, slots=True)
class Topology:
    """Where ranks stand, and how the router groups experts."""

    nodes: tuple[str, ...] = ()
    """[N] node of each rank; empty where not known."""
    num_groups: int = 1
    """Expert groups of the router; 1 where it has none."""

    def require_fit(self, num_ranks: int) -> None:
        """Raise InvalidTable or InvalidSettings where it is not made for so many ranks."""
        if self.nodes and len(self.nodes) != num_ranks:
            raise InvalidTable(f"{len(self.nodes)} nodes named; expected {num_ranks}, one per rank")
        if self.num_groups < 1:
            raise InvalidSettings(f"{self.num_groups} expert groups; expected 1 or more")


FLAT = Topology()
