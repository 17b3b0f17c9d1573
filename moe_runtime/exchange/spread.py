"""Which tokens of a team a rank owns, where all of its ranks have them.

Axes    N ranks   T tokens of a team
"""

from collections.abc import Sequence
from dataclasses import replace

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.contracts.spread import OwnTokens, Replicated, Sharded, TokenSpread
from moe_runtime.contracts.step import StepView
from moe_runtime.exchange.peers import Peers
from moe_runtime.exchange.team import TeamPeers

__all__ = ["check_spread", "led", "pieces", "sliced", "team_of"]


def pieces(rows: int, team: int) -> tuple[int, ...]:
    """Return how many of a team's tokens each of its ranks owns, in order; they may be none.

    >>> pieces(7, 3), pieces(1, 3)
    ((3, 2, 2), (1, 0, 0))
    """
    each, extra = divmod(rows, team)
    return tuple(each + (rank < extra) for rank in range(team))


def sliced(view: StepView, team: int) -> StepView:
    """Return the step in which each rank of a team brings its piece of the team's tokens.

    Raises RanksDisagree unless the ranks of each team have announced the same tokens.
    """
    by_team = _rows_by_team(view, team)
    return replace(view, rows_N=tuple(p for rows in by_team for p in pieces(rows, team)))


def led(view: StepView, team: int) -> StepView:
    """Return the step in which the first rank of each team brings all of the team's tokens.

    So a token counts once, and its place among all tokens is the same for every rank of a team.
    Raises RanksDisagree like `sliced`, and where the ranks of a team have announced different
    tables: each would send a token to another replica, and it would be computed twice or never.
    """
    marks = view.marks_N
    if any(len(set(marks[i : i + team])) > 1 for i in range(0, len(marks), team)):
        raise RanksDisagree(
            f"the dispatch tables of the {team} ranks of a team, which hold their tokens alike,",
            told=[(mark,) for mark in marks],
            names=("fingerprints",),
        )
    rest = (0,) * (team - 1)
    rows_N = tuple(r for rows in _rows_by_team(view, team) for r in (rows, *rest))
    return replace(view, rows_N=rows_N, team=team)


def team_of(peers: Peers, team: int) -> TeamPeers:
    """Return this rank's team."""
    first = peers.rank - peers.rank % team
    return TeamPeers(peers, tuple(range(first, first + team)))


def check_spread(spread: TokenSpread, *, num_ranks: int) -> None:
    """Raise ShapeMismatch unless the ranks divide into teams."""
    match spread:
        case OwnTokens():
            return
        case Replicated(team) | Sharded(team):
            if team < 1 or num_ranks % team:
                raise ShapeMismatch(
                    "team", got=(team,), expected=f"a divisor of the {num_ranks} ranks"
                )


def _rows_by_team(view: StepView, team: int) -> Sequence[int]:
    teams = [view.rows_N[first : first + team] for first in range(0, len(view.rows_N), team)]
    if any(len(set(rows)) > 1 for rows in teams):
        raise RanksDisagree(
            f"the number of tokens that {team} ranks of a team hold alike",
            told=[(rows,) for rows in view.rows_N],
            names=("tokens",),
        )
    _refuse_unlike_tokens(view, team)
    return [rows[0] for rows in teams]


def _refuse_unlike_tokens(view: StepView, team: int) -> None:
    """Raise RanksDisagree if ranks of a team hold as many tokens, but others."""
    marks = view.tokens_N
    if any(len(set(marks[first : first + team])) > 1 for first in range(0, len(marks), team)):
        raise RanksDisagree(
            f"the tokens that {team} ranks of a team hold alike",
            told=[(mark,) for mark in marks],
            names=("fingerprints",),
        )
