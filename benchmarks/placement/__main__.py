"""Policies side by side: balance on a window and on the next against the weights moved.

Each policy starts from the flat layout and plans every window from its own placement of the
one before. Means are over layers, seeds and the windows after the first. Lists are separated
by commas. Times are of one thread only where the numeric library is told so.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.placement.counts_file import counts_of_file
from benchmarks.placement.first_plan import first_plan
from benchmarks.placement.frontier import write_frontier
from benchmarks.placement.peers import Peer, PeerProcess, peers_of
from benchmarks.placement.report import redundancy_table, table, write
from benchmarks.placement.runs import Load, Value, as_record, plan_of, run, unfit
from benchmarks.placement.scenarios import Scenario, windows
from benchmarks.placement.shapes import SHAPES, Shape
from eplb_service.domain.errors import EplbError, InvalidSettings
from eplb_service.policies.catalog import POLICIES, policy_named
from eplb_service.policies.redundancy import advise, suggested

__all__ = ["main"]

ADVISED_ROUNDS = 4
"""Spare slots per rank up to which slots are compared."""
SCENARIOS = {scenario.name.lower(): scenario for scenario in Scenario}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    scenarios: tuple[str, ...]
    shapes: tuple[Shape, ...]
    seeds: tuple[int, ...]
    num_windows: int | None
    policies: tuple[str, ...]
    counts: Path | None
    peers: tuple[Peer, ...]
    json: Path
    plot: Path | None
    instead: str
    """Empty, or `advise` or `first-plan`: what to do in the place of a run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 where a placement was invalid, 2 where it makes no sense."""
    try:
        asked = _asked(_parser().parse_args(arguments))
        if asked.instead == "advise":
            _print_redundancy(asked)
            return 0
        if asked.instead == "first-plan":
            _print_first_plans(asked)
            return 0
        records = list(_records(asked))
    except EplbError as refused:
        print(f"{refused.code}: {refused}", file=sys.stderr)
        return 2
    print(table(records))
    write(records, asked.json)
    print(f"\n{len(records)} rows written to {asked.json}")
    if asked.plot is not None:
        write_frontier(records, asked.plot)
        print(f"balance against moves drawn in {asked.plot}")
    print(f"public planners run: {', '.join(peer.kind for peer in asked.peers) or 'none'}")
    own = [record["valid"] for record in records if record["policy"] in asked.policies]
    return 0 if all(own) else 1


def _records(asked: Asked) -> Iterator[dict[str, Value]]:
    for load in _loads(asked):
        for policy in asked.policies:
            reason = unfit(load.shape, policy)
            if reason:
                print(f"{policy} left out on {load.shape.name}: {reason}", file=sys.stderr)
                continue
            for row in run(load, policy, plan_of(policy)):
                yield as_record(row)
        for peer in asked.peers:
            with PeerProcess(peer, load.shape) as process:
                rows = run(load, peer.kind, lambda r, p=process: p.plan(r.heat, r.placement))
                yield from map(as_record, rows)


def _print_redundancy(asked: Asked) -> None:
    """Print what further slots buy on each load; nothing else is run."""
    for load in _loads(asked):
        shape, heat = load.shape, [tokens.astype(np.float64) for tokens in load.tokens]
        slots = suggested(shape.num_experts, shape.num_ranks, ADVISED_ROUNDS)
        rows = advise(heat, shape.num_ranks, slots)
        print(redundancy_table(shape.name, load.scenario, rows))


def _print_first_plans(asked: Asked) -> None:
    """Print what a fresh process takes for its first plan; nothing else is run."""
    for shape in asked.shapes:
        for policy in asked.policies:
            found = first_plan(shape.name, policy)
            print(
                f"{shape.name} {policy}: {found.total_s:.2f} s of one processor, of them "
                f"{found.start_s:.2f} s to start and {found.plan_s:.2f} s to plan"
            )


def _loads(asked: Asked) -> Iterator[Load]:
    for shape in asked.shapes:
        for seed in asked.seeds:
            if asked.counts is not None:
                yield _load_of_file(asked, asked.counts, shape, seed)
                continue
            for name in asked.scenarios:
                count = asked.num_windows or shape.num_windows
                drawn = windows(SCENARIOS[name], shape, seed=seed, num_windows=count)
                yield Load(shape, name, seed, [stages.sum(axis=0) for stages in drawn])


def _load_of_file(asked: Asked, path: Path, shape: Shape, seed: int) -> Load:
    """The file's windows in order, and from the first again where more are asked for."""
    found = counts_of_file(path)
    count = asked.num_windows or len(found)
    own = replace(shape, num_layers=found[0].shape[0], num_experts=found[0].shape[1])
    return Load(own, path.stem, seed, [found[n % len(found)] for n in range(count)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    names = ", ".join(SCENARIOS)
    policies = ",".join(listed.name for listed in POLICIES)
    parser.add_argument("--scenario", type=_names, help=f"default: drift; {names}")
    parser.add_argument("--shape", type=_names, default=("dsv3-ep32",), help=", ".join(SHAPES))
    parser.add_argument("--seeds", type=_seeds, default=(0,), help="default: 0")
    parser.add_argument("--windows", type=int, help="default: 9, 5 for K3, all of a counts file")
    parser.add_argument(
        "--policy", type=_names, default=_names(policies), help=f"default: {policies}"
    )
    parser.add_argument(
        "--counts", type=Path, help=".npz of windows [L, E] or [T, L, E]; in place of a scenario"
    )
    for name in ("slots", "ranks", "nodes", "groups"):
        parser.add_argument(f"--{name}", type=int, help=f"{name}, in place of the shape's")
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench-placement.json"), help="file of all rows"
    )
    parser.add_argument("--plot", type=Path, help="file of an SVG of balance against moves")
    _add_instead(parser)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="KIND=PATH",
        help="a public planner from where you have it, in a process of its own: deepseek=PATH, "
        "vllm-ascend=PATH, vllm, sglang; may be repeated",
    )
    return parser


def _add_instead(parser: argparse.ArgumentParser) -> None:
    """Add what may be done in the place of a run."""
    others = {
        "advise": "print what further slots buy, connected for window 0, in all others",
        "first-plan": "print what a fresh process takes for its first plan",
    }
    for name, about in others.items():
        parser.add_argument(
            f"--{name}",
            dest="instead",
            action="store_const",
            const=name,
            default="",
            help=f"run no policy over windows: {about}",
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(name) for name in _names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of whole numbers; expected for example 0,1,2"
        ) from None


def _asked(given: argparse.Namespace) -> Asked:
    """Check what was given; raises InvalidSettings or UnknownPolicy."""
    for name in given.policy:
        policy_named(name)
    if given.counts and given.scenario:
        raise InvalidSettings(
            f"--scenario {','.join(given.scenario)} beside --counts {given.counts}; "
            "expected one of the two: either loads are drawn or they are read"
        )
    scenarios = given.scenario or ("drift",)
    for known, names in ((SCENARIOS, scenarios), (SHAPES, given.shape)):
        if missing := [name for name in names if name not in known]:
            raise InvalidSettings(f"there is no {missing[0]!r}; there are: {', '.join(known)}")
    if min(given.seeds) < 0:
        raise InvalidSettings(f"a seed of {min(given.seeds)}; expected 0 or more")
    if given.windows is not None and given.windows < 1:
        raise InvalidSettings(f"{given.windows} windows; expected one or more")
    given_sizes = {
        "num_slots": given.slots,
        "num_ranks": given.ranks,
        "num_nodes": given.nodes,
        "num_groups": given.groups,
    }
    sizes: dict[str, int] = {name: size for name, size in given_sizes.items() if size is not None}
    shapes = tuple(_resized(SHAPES[name], sizes) for name in given.shape)
    return Asked(
        scenarios=scenarios,
        shapes=shapes,
        seeds=given.seeds,
        num_windows=given.windows,
        policies=given.policy,
        counts=given.counts,
        peers=peers_of(given.peer),
        json=given.json,
        plot=given.plot,
        instead=given.instead,
    )


def _resized(shape: Shape, sizes: dict[str, int]) -> Shape:
    if not sizes:
        return shape
    resized = replace(shape, **sizes)
    return replace(resized, name=f"{shape.name}:p{resized.num_slots}r{resized.num_ranks}")


if __name__ == "__main__":
    sys.exit(main())
