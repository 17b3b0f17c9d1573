"""Transfer rounds as the ranks see them: point to point, each needs both of its ends.

A round that one end leaves is lost for the other, so leaving one is a violation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.wave import EXPERT, LAYER, SOURCE, TARGET, Order
from eplb_service.protocol.messages import WaveName
from eplb_service.sim.story import Violation


@dataclass(frozen=True, slots=True)
class Move:
    """One expert from one slot to another."""

    number: int
    layer: int
    expert: int
    source: int
    target: int


@dataclass(slots=True, eq=False)
class Part:
    """One rank's part of the round that it is in."""

    wave: WaveName
    number: int
    moves: dict[int, Move]
    """Moves that this rank sends or receives and that are not complete."""
    is_bad: bool = False
    """Something arrived that its digest does not fit."""


@dataclass(slots=True, eq=False)
class Transfers:
    """The rounds in flight, at most one per rank."""

    layout: SlotLayout
    parts: dict[int, Part] = field(default_factory=dict[int, Part])

    def begin(self, rank: int, order: Order, number: int) -> None:
        """Start one rank's part of a round; every other part in flight must be of the same."""
        wave = WaveName(order.epoch, order.digest)
        for other, part in self.parts.items():
            if (part.wave, part.number) != (wave, number) or other == rank:
                raise Violation(
                    f"rank {rank} begins round {number} of epoch {wave.epoch} while rank {other} "
                    f"has not finished round {part.number} of epoch {part.wave.epoch}"
                )
        moves: dict[int, Move] = {}
        for at, row in enumerate(order.content.round_transfers(number).tolist()):
            move = Move(at, row[LAYER], row[EXPERT], row[SOURCE], row[TARGET])
            if rank in self.ends(move):
                moves[at] = move
        self.parts[rank] = Part(wave, number, moves)

    def ends(self, move: Move) -> tuple[int, int]:
        """Source and target rank."""
        ranks = self.layout.rank_of_slot()
        return int(ranks[move.source]), int(ranks[move.target])

    def movable(self) -> list[Move]:
        """Moves whose both ends are in the round."""
        return [
            move
            for rank, part in sorted(self.parts.items())
            for move in part.moves.values()
            if self.ends(move)[1] == rank and self.ends(move)[0] in self.parts
        ]

    def complete(self, move: Move, *, is_bad: bool) -> None:
        """Both ends are done with a move; `is_bad` where what arrived fails its digest."""
        source, target = self.ends(move)
        for rank in {source, target}:
            del self.parts[rank].moves[move.number]
        self.parts[target].is_bad |= is_bad

    def finished(self) -> list[int]:
        """Ranks whose part is complete."""
        return [rank for rank, part in sorted(self.parts.items()) if not part.moves]

    def in_round(self) -> Iterator[tuple[int, Part]]:
        """Every rank that is in a round, with its part."""
        return iter(sorted(self.parts.items()))
