"""Windows of load in their order: every plan made from the one before, measured on what came next.

Axes    L MoE layers   E logical experts   N ranks
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean

import numpy as np

from eplb_service.cli.client import Client
from eplb_service.cli.costs import Costs, costs_of, topology_of
from eplb_service.cli.ends import Answer, invalid
from eplb_service.cli.loads import Loads, read_loads
from eplb_service.cli.options import Options
from eplb_service.cli.plain import Plain, plain
from eplb_service.cli.progress import bar, progress
from eplb_service.cli.simulate import head
from eplb_service.cli.starts import starts
from eplb_service.cli.what_if import Evenness, Outcome, evenness, outcome
from eplb_service.cli.words import figure, size, table
from eplb_service.domain.errors import EplbError
from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.placement import Placement
from eplb_service.policies.bounds import Topology

HEADS = (
    *("redundant", "policy", "left alone", "planned", "next", "shares next"),
    *("first moves", "later moves a window", "bytes"),
)
NOTES = """\
means over windows; left alone: the placement at the start on the windows after the first; planned:
on the window that a plan saw; next: the same placement on the window after it, each expert divided
evenly, and by shares written anew for it"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One plan, and the window after it."""

    planned: Outcome
    alone: Evenness
    """The placement at the start, on the window after."""
    next: Evenness
    """The plan's, there."""


@dataclass(frozen=True, slots=True)
class Played:
    """All turns of one policy with one number of slots."""

    policy: str
    redundancy: int
    turns: tuple[Turn, ...]


def replay(client: Client, options: Options, args: Namespace) -> Answer:
    """Play a file's windows to every policy."""
    del client, options
    loads, costs = read_loads(args.file), costs_of(args)
    if len(loads.tokens) < 2:
        raise invalid(f"{args.file} holds one window; a replay needs two, `simulate` takes one")
    try:
        placements = list(starts(loads, args))
        topology = topology_of(placements[0].layout.num_ranks, args)
        played = list(_played(loads, placements, args.policy, topology))
    except EplbError as error:
        raise invalid(f"{error}; nothing was computed") from error
    said = [turn.planned.warning for one in played for turn in one.turns if turn.planned.warning]
    tree: Plain = {
        "file": str(args.file),
        "format": str(loads.form),
        "windows": len(loads.tokens),
        "played": [_facts(one, costs) for one in played],
    }
    shown = "\n\n".join((head(args.file, loads), _rows(played, costs), NOTES))
    return Answer(shown, tree, complaint="\n".join(dict.fromkeys(said)))


def _played(
    loads: Loads, placements: Sequence[Placement], policies: Sequence[str], topology: Topology
) -> Iterator[Played]:
    pairs = len(loads.tokens) - 1
    of, done = len(placements) * len(policies) * pairs, 0
    with progress() as draw:
        for start, policy in product(placements, policies):
            turns: list[Turn] = []
            current = start
            for window, after in pairwise(loads.tokens):
                draw(bar(done, of, f"{done} of {of} plans"))
                planned, current = outcome(window, current, policy, topology)
                turns.append(Turn(planned, evenness(after, start), evenness(after, current)))
                done += 1
            yield Played(policy, turns[0].planned.redundancy, tuple(turns))


def _facts(one: Played, costs: Costs) -> Plain:
    return {
        "policy": one.policy,
        "redundancy": one.redundancy,
        "moves": sum(turn.planned.moves for turn in one.turns),
        "bytes": _bytes(one, costs) if costs.expert_bytes else None,
        "turns": [
            {
                "moves": turn.planned.moves,
                "planned": plain(turn.planned.after),
                "left_alone": plain(turn.alone),
                "next": plain(turn.next),
            }
            for turn in one.turns
        ],
    }


def _bytes(one: Played, costs: Costs) -> int:
    return sum(turn.planned.moves for turn in one.turns) * costs.expert_bytes


def _rows(played: Sequence[Played], costs: Costs) -> str:
    heads = HEADS if costs.expert_bytes else HEADS[:-1]
    right = [at for at in range(len(heads)) if at != 1]
    return table(heads, [_cells(one, costs)[: len(heads)] for one in played], right=right)


def _cells(one: Played, costs: Costs) -> tuple[str, ...]:
    later = [turn.planned.moves for turn in one.turns[1:]]
    return (
        str(one.redundancy),
        one.policy,
        figure(mean_with_data(np.array([turn.alone.even for turn in one.turns])), 3),
        figure(mean_with_data(np.array([turn.planned.after.even for turn in one.turns])), 3),
        figure(mean_with_data(np.array([turn.next.even for turn in one.turns])), 3),
        figure(mean_with_data(np.array([turn.next.shares for turn in one.turns])), 3),
        str(one.turns[0].planned.moves),
        figure(fmean(later), 1) if later else "-",
        size(_bytes(one, costs)),
    )
