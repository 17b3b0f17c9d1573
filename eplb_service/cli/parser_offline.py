"""The command line of verbs that record load, or compute from load that was counted."""

from argparse import ArgumentParser
from math import inf
from pathlib import Path

from eplb_service.cli import analyze, record, replay, simulate
from eplb_service.cli.adder import Adder
from eplb_service.cli.costs import above_zero, milliseconds, policies
from eplb_service.cli.options import duration, small_number, whole_number
from eplb_service.cli.starts import slot_counts, some_slots

POLICIES = ("incremental", "connected")


def add_offline(add: Adder) -> None:
    """Add record, replay, simulate and analyze."""
    _add_record(add)
    replayed = add(
        "replay",
        replay.replay,
        "play recorded windows to policies, each plan measured on the window after it",
        "eplbctl replay recorded.npz --policy incremental,connected",
    )
    _name_load(replayed)
    _say_slots(replayed)
    _say_costs(replayed)
    simulated = add(
        "simulate",
        simulate.simulate,
        "compute what policies and more slots would do with load that was counted",
        "eplbctl simulate counts.npz --ranks 32 --redundancy 0,32,64",
    )
    _name_load(simulated)
    _say_slots(simulated)
    _say_costs(simulated)
    _add_analyze(add)


def _add_analyze(add: Adder) -> None:
    analyzed = add(
        "analyze",
        analyze.analyze,
        "advise whether balancing pays: worth trying, not now, or not enough evidence",
        "eplbctl analyze recorded.npz --ranks 32 --step-ms 40 --expert-ms 12 --stall-ms 900",
    )
    _name_load(analyzed, nargs="?")
    _say_slots(analyzed)
    _say_costs(analyzed)
    analyzed.set_defaults(policy=())
    for name, when in (("now", "now"), ("then", "that a plan predicts")):
        analyzed.add_argument(
            f"--imbalance-{name}",
            type=above_zero,
            metavar="X",
            help=f"peak over mean of the ranks {when}; with both no load is looked at",
        )
    analyzed.add_argument(
        "--interval-steps",
        type=small_number,
        metavar="N",
        help="steps within which the loss must be won back (default: gates.max_payback_steps)",
    )


def _add_record(add: Adder) -> None:
    group = add.group(
        "record",
        "record the controller's load windows into a file",
        "eplbctl record start recorded.npz --every 30s --for 1h",
    )
    begin = group(
        "start",
        record.start,
        "record, in the foreground, until the time is over or it is stopped",
        "eplbctl record start recorded.npz --every 30s --for 1h",
    )
    begin.add_argument(
        "--every",
        type=duration,
        default=30.0,
        metavar="TIME",
        help="between looks, best as long as a window (default: 30s)",
    )
    begin.add_argument(
        "--for",
        dest="seconds",
        type=duration,
        default=inf,
        metavar="TIME",
        help="for how long (default: until stopped)",
    )
    end = group(
        "stop",
        record.stop,
        "end a recording from another terminal, and wait until its file is whole",
        "eplbctl record stop recorded.npz",
    )
    end.set_defaults(needs_controller=False)
    for parser in (begin, end):
        parser.add_argument("file", type=Path, metavar="FILE", help="the recording, .npz")


def _name_load(parser: ArgumentParser, *, nargs: str | None = None) -> None:
    asked = " (default: the controller's newest window)" if nargs else ""
    parser.add_argument(
        "file",
        type=Path,
        nargs=nargs,
        metavar="FILE",
        help="counts in .npz, .npy or JSON, SGLang's logical_count, or what `record` or "
        "`heat -o json` wrote" + asked,
    )
    parser.set_defaults(needs_controller=bool(nargs))


def _say_slots(parser: ArgumentParser) -> None:
    parser.add_argument("--ranks", type=small_number, metavar="N", help="ranks of the group")
    parser.add_argument(
        "--map",
        type=Path,
        metavar="FILE",
        help="the placement to start from, in any known format (default: a recording's own, else "
        "as engines load experts)",
    )
    slots = parser.add_mutually_exclusive_group()
    slots.add_argument(
        "--redundancy",
        type=slot_counts,
        metavar="N,N",
        help="redundant slots a layer, over all ranks; auto tries what divides (default: the "
        "map's, else 0)",
    )
    slots.add_argument(
        "--slots", type=some_slots, metavar="N,N", help="all slots a layer, over all ranks, instead"
    )
    parser.add_argument("--nodes", type=small_number, metavar="N", help="nodes of the ranks")
    parser.add_argument(
        "--groups",
        type=small_number,
        default=1,
        metavar="G",
        help="groups of experts, in order, of which a token's router takes a few (default: none)",
    )
    parser.add_argument(
        "--policy",
        type=policies,
        default=POLICIES,
        metavar="NAME,NAME",
        help=f"policies that plan (default: {','.join(POLICIES)})",
    )


def _say_costs(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--shares",
        action="store_true",
        help="ranks divide tokens by shares that the controller sets, not evenly",
    )
    parser.add_argument(
        "--expert-bytes", type=whole_number, metavar="N", help="bytes of one expert of one layer"
    )
    for name, help_ in (
        ("step", "length of a step now, in ms"),
        ("expert", "of it, expert computation on the slowest rank, in ms"),
        ("stall", "what serving loses to a whole plan, in ms"),
    ):
        parser.add_argument(f"--{name}-ms", type=milliseconds, metavar="MS", help=help_)
