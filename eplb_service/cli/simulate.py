"""What policies and more slots would do with load that was counted; asks no controller."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from eplb_service.cli.client import Client
from eplb_service.cli.costs import Costs, costs_of, payback, topology_of
from eplb_service.cli.ends import Answer, invalid
from eplb_service.cli.loads import Loads, read_loads
from eplb_service.cli.options import Options
from eplb_service.cli.plain import Plain, plain
from eplb_service.cli.progress import bar, progress
from eplb_service.cli.starts import starts
from eplb_service.cli.what_if import Outcome, least_enough, outcome
from eplb_service.cli.words import count, figure, line, size, table
from eplb_service.domain.errors import EplbError
from eplb_service.domain.placement import Placement

HEADS = (
    *("redundant", "policy", "now", "after", "worst after"),
    *("shares now", "shares after", "moves", "bytes", "more memory a rank", "pay-back"),
)
NOTES = """\
now, after: peak over mean of the ranks, mean over layers, each expert divided evenly over its
replicas; shares: divided as levels the ranks best, without moving anything"""


def simulate(client: Client, options: Options, args: Namespace) -> Answer:
    """Plan for a file's load by every policy with every number of slots."""
    del client, options
    loads, costs = read_loads(args.file), costs_of(args)
    try:
        found = list(_outcomes(loads, list(starts(loads, args)), args))
    except EplbError as error:
        raise invalid(f"{error}; nothing was computed") from error
    warnings = "\n".join(dict.fromkeys(one.warning for one in found if one.warning))
    enough = _enough(found, costs)
    tree: Plain = {
        "file": str(args.file),
        "format": str(loads.form),
        "windows": len(loads.tokens),
        "uses_shares": costs.use_shares,
        "outcomes": [_facts(one, costs, loads) for one in found],
        "recommended_redundancy": enough,
    }
    parts = [head(args.file, loads), _rows(found, costs, loads), NOTES]
    if len({one.redundancy for one in found}) > 1:
        parts.append(_recommendation(found, costs, enough))
    return Answer("\n\n".join(parts), tree, complaint=warnings)


def head(path: Path, loads: Loads) -> str:
    """Say what the load is."""
    windows, layers, experts = loads.tokens.shape
    return line(
        "load",
        f"{path} ({loads.form})",
        count(windows, "window"),
        f"{count(layers, 'layer')} of {count(experts, 'expert')}",
        f"{loads.tokens.sum():.0f} tokens",
    )


def _outcomes(loads: Loads, placements: Sequence[Placement], args: Namespace) -> Iterator[Outcome]:
    topology = topology_of(placements[0].layout.num_ranks, args)
    asked = [(start, policy) for start in placements for policy in args.policy]
    with progress() as draw:
        for done, (start, policy) in enumerate(asked):
            draw(bar(done, len(asked), f"{done} of {len(asked)} plans"))
            yield outcome(loads.total, start, policy, topology)[0]


def _more_memory(one: Outcome, costs: Costs, loads: Loads) -> int:
    """Bytes that redundant slots take on the fullest rank, over all layers."""
    each = max(one.layout.slots_per_rank)
    without = -(-loads.tokens.shape[2] // one.layout.num_ranks)
    return max(0, each - without) * loads.tokens.shape[1] * costs.expert_bytes


def _facts(one: Outcome, costs: Costs, loads: Loads) -> Plain:
    return {
        "redundancy": one.redundancy,
        "slots_per_rank": max(one.layout.slots_per_rank),
        "num_ranks": one.layout.num_ranks,
        "policy": one.policy,
        "before": plain(one.before),
        "after": plain(one.after),
        "moves": one.moves,
        "bytes": one.moves * costs.expert_bytes if costs.expert_bytes else None,
        "more_bytes_per_rank": _more_memory(one, costs, loads) if costs.expert_bytes else None,
        "payback_steps": plain(costs.payback_steps(one)),
    }


def _rows(found: Sequence[Outcome], costs: Costs, loads: Loads) -> str:
    """Make the table, without the columns that nothing was said for."""
    shown = set(HEADS)
    if not costs.expert_bytes:
        shown -= {"bytes", "more memory a rank"}
    if not costs.has_times:
        shown -= {"pay-back"}
    keep = [at for at, name in enumerate(HEADS) if name in shown]
    rows = [[_cells(one, costs, loads)[at] for at in keep] for one in found]
    right = [nth for nth, at in enumerate(keep) if at != HEADS.index("policy")]
    return table([HEADS[at] for at in keep], rows, right=right)


def _cells(one: Outcome, costs: Costs, loads: Loads) -> tuple[str, ...]:
    before, after = one.before, one.after
    return (
        str(one.redundancy),
        one.policy,
        figure(before.even, 3),
        figure(after.even, 3),
        figure(after.even_worst, 3),
        figure(before.shares, 3),
        figure(after.shares, 3),
        str(one.moves),
        size(one.moves * costs.expert_bytes),
        size(_more_memory(one, costs, loads)),
        payback(costs.payback_steps(one)),
    )


def _best_by_redundancy(found: Sequence[Outcome], costs: Costs) -> dict[int, float]:
    best: dict[int, float] = {}
    for one in found:
        value = costs.imbalance(one.after)
        best[one.redundancy] = min(value, best.get(one.redundancy, value))
    return best


def _enough(found: Sequence[Outcome], costs: Costs) -> int:
    return least_enough(list(_best_by_redundancy(found, costs).items()))


def _recommendation(found: Sequence[Outcome], costs: Costs, enough: int) -> str:
    best = _best_by_redundancy(found, costs)
    kind = "under shares" if costs.use_shares else "divided evenly"
    text = f"{enough} redundant, imbalance {figure(best[enough], 3)} {kind}"
    most = max(best)
    if most > enough:
        text += f"; {most - enough} more slots would bring {figure(best[most], 3)}"
    return line("recommended", text)
