"""How tokens lie over the ranks of a team (tensor parallelism) when they enter a layer.

Ranks are numbered team by team: ranks 0 to team - 1 are one data-parallel rank's, and so on.
"""

from dataclasses import dataclass

__all__ = ["OWN", "OwnTokens", "Replicated", "Sharded", "TokenSpread"]


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """Every rank has tokens of its own."""


@dataclass(frozen=True, slots=True)
class Replicated:
    """All ranks of a team have the same rows, padding included, and get all results."""

    team: int
    is_compared: bool = True
    """Whether they tell each other fingerprints of their tokens, bit by bit, with every step;
    ranks whose tokens may differ in their last bits cannot."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Each rank of a team has its shard of the team's rows, in order (sequence parallelism)."""

    team: int


OWN = OwnTokens()
TokenSpread = OwnTokens | Replicated | Sharded
