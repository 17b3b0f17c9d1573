"""The command line: every verb with its options, one line of help and an example."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from eplb_service.cli import acts, differ, doctor, follow, reads
from eplb_service.cli.adder import Adder, offer_wait, shared_options, top_parser
from eplb_service.cli.endpoints import endpoint
from eplb_service.cli.options import (
    EXAMPLE,
    WAIT_TIMEOUT_S,
    assignment,
    duration,
    layers,
    small_number,
    whole_number,
)
from eplb_service.cli.parser_files import (
    add_audit,
    add_completion,
    add_contexts,
    add_files,
)
from eplb_service.cli.parser_offline import add_offline

ABOUT = """\
Look after the placement of experts: see how even their load is, move them, go back.

  eplbctl status                       how does it stand?
  eplbctl plan                         what would be moved, at what price? (changes nothing)
  eplbctl rebalance --wait             move it, and wait until it is served
  eplbctl freeze --for 2h --reason "release"      no automatic plans for a while
"""
ENDS = """\
exit codes: 0 done or nothing to do, 1 failed or not found, 2 invalid input, 3 refused by the
state (frozen, overtaken, no leader), 4 not allowed, 5 no answer in time, 10 a plan would change
something (plan --exit-code), 130 interrupted
"""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The parser of eplbctl, and those of all verbs that do something, in the help's order."""

    parser: ArgumentParser
    verbs: tuple[ArgumentParser, ...]


def build_parser() -> ArgumentParser:
    """Return the parser of eplbctl; each verb leaves itself as `verb` in the namespace."""
    return build_command_line().parser


def parsed(words: Sequence[str]) -> Namespace:
    """Read a command line; raises SystemExit where it makes no sense, with that said."""
    parser = build_parser()
    args, rest = parser.parse_known_args(words)
    if rest:
        help_is_at = f"`{args.named} --help` lists what it takes"
        parser.error(f"unrecognized arguments: {' '.join(rest)}; {help_is_at}")
    return args


def build_command_line() -> CommandLine:
    """Return the parser of eplbctl with those of its verbs."""
    shared = shared_options()
    parser = top_parser("eplbctl", parents=[shared], description=ABOUT, epilog=ENDS)
    groups = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    verbs: list[ArgumentParser] = []
    add = Adder(groups.add_parser, shared, verbs)
    _add_reads(add)
    _add_doctor(add)
    _add_follows(add)
    _add_moves(add)
    _add_brakes(add)
    _add_drains(add)
    add_files(add)
    add_offline(add)
    _add_config(add)
    add_audit(add)
    add_contexts(add)
    add_completion(add, build_parser)
    return CommandLine(parser, tuple(verbs))


def _add_reads(add: Adder) -> None:
    add("status", reads.status, "show how every deployment stands", "eplbctl status -o json")
    heat = add(
        "heat", reads.heat, "show how many tokens each expert got", "eplbctl heat --layer 0-3"
    )
    heat.add_argument(
        "--layer",
        dest="layers",
        type=layers,
        default=(),
        metavar="N",
        help="MoE layers to show: 3, 0-7 or 0,4,8-11 (default: all)",
    )
    heat.add_argument(
        "--csv", action="store_true", help="write layer,model_layer,expert,tokens lines instead"
    )
    plan = add(
        "plan",
        reads.plan,
        "draw, price and judge a plan; changes nothing",
        "eplbctl plan --exit-code",
    )
    _say_what_to_plan(plan)
    plan.add_argument("--reason", default="", help="why, for the history")
    plan.add_argument(
        "--exit-code", action="store_true", help="exit with 10 if the plan would change something"
    )
    explain = add(
        "explain", reads.explain, "show a plan with every gate that spoke", "eplbctl explain 7f3a"
    )
    _name_plan(explain)
    history = add("history", reads.history, "show what happened, newest first", "eplbctl history")
    history.add_argument(
        "--limit", type=small_number, default=20, metavar="N", help="most lines (default: 20)"
    )


def _add_doctor(add: Adder) -> None:
    examined = add(
        "doctor",
        doctor.doctor,
        "look for what is wrong, and say what to do; exits with 1 where something is",
        "eplbctl doctor --bundle support.tar.gz",
    )
    examined.add_argument(
        "--metrics",
        type=endpoint,
        metavar="HOST:PORT",
        help=f"where /metrics is (default: the controller's host, port {doctor.METRICS_PORT})",
    )
    examined.add_argument(
        "--bundle",
        type=Path,
        metavar="FILE",
        help="pack status, heat, history with its names and reasons, settings that operators may "
        "change and metrics into a .tar.gz for support; no files, logs, environment or keys",
    )


def _add_follows(add: Adder) -> None:
    wait = add(
        "wait", follow.wait, "wait until a deployment is as asked", "eplbctl wait --for settled"
    )
    wait.add_argument(
        "--for", dest="goal", choices=[str(goal) for goal in follow.Goal], default="settled"
    )
    wait.set_defaults(patience_s=WAIT_TIMEOUT_S)
    watch = add("watch", follow.watch, "print events as they happen", "eplbctl watch --count 10")
    top = add("top", follow.top, "draw status, heat and events anew and anew", "eplbctl top")
    top.add_argument(
        "--every", type=duration, default=2.0, metavar="TIME", help="between looks (default: 2s)"
    )
    for parser, what in ((watch, "events"), (top, "looks")):
        parser.add_argument(
            "--count", type=small_number, default=0, metavar="N", help=f"stop after N {what}"
        )
        parser.set_defaults(patience_s=inf)
    differ_ = add(
        "diff", differ.diff, "show which ranks hold other experts", "eplbctl diff 40 served"
    )
    for name, help_ in (("before", "an epoch, `served`, or a file"), ("after", "likewise")):
        differ_.add_argument(name, metavar=name.upper(), help=help_)
    differ_.add_argument("--ranks", type=small_number, metavar="N", help="for files without ranks")
    differ_.add_argument("--exit-code", action="store_true", help="exit with 10 if they differ")


def _add_moves(add: Adder) -> None:
    apply = add.act(
        "apply", acts.apply, "start a plan that `plan` drew", "eplbctl apply 7f3a --wait"
    )
    _name_plan(apply)
    offer_wait(apply)
    rebalance = add.act(
        "rebalance",
        acts.rebalance,
        "draw a plan and carry it out unless its verdict is no",
        'eplbctl rebalance --layers 0-7 --reason "evening peak" --wait',
    )
    _say_what_to_plan(rebalance)
    offer_wait(rebalance)
    rollback = add.act(
        "rollback",
        acts.rollback,
        "return to an earlier placement, by a plan like any other",
        "eplbctl rollback --to 38 --wait",
    )
    rollback.add_argument(
        "--to",
        type=whole_number,
        metavar="EPOCH",
        help="epoch to return to (default: the one before; `history` lists them)",
    )
    offer_wait(rollback)


def _add_brakes(add: Adder) -> None:
    abort = add.act(
        "abort",
        acts.abort,
        "end a plan after its running wave; what stands is valid",
        "eplbctl abort 7f3a",
    )
    _name_plan(abort)
    freeze = add.act(
        "freeze",
        acts.freeze,
        "allow no automatic plan for a time; a running wave finishes",
        'eplbctl freeze --for 30m --reason "load test"',
    )
    freeze.add_argument(
        "--for",
        dest="seconds",
        type=duration,
        required=True,
        metavar="TIME",
        help="for how long: 90s, 30m, 2h, 1d",
    )
    unfreeze = add.act("unfreeze", acts.freeze, "lift a freeze", "eplbctl unfreeze")
    unfreeze.set_defaults(seconds=0.0)
    resume = add.act(
        "resume",
        acts.resume,
        "clear a halt, after an audit that passes on all ranks",
        "eplbctl resume 3",
    )
    resume.add_argument(
        "halt",
        type=whole_number,
        nargs="?",
        metavar="HALT",
        help="number of the halt, as `status` shows it (default: the one that stands)",
    )


def _add_drains(add: Adder) -> None:
    drain = add.act(
        "drain",
        acts.drain,
        "empty a rank of routed experts, and give it none until it is undrained",
        'eplbctl drain 5 --reason "swap the NPU" --wait',
    )
    undrain = add.act(
        "undrain", acts.undrain, "let a drained rank be used again", "eplbctl undrain 5 --wait"
    )
    for verb in (drain, undrain):
        verb.add_argument("rank", type=whole_number, metavar="RANK", help="as `status` counts them")
        offer_wait(verb)


def _add_config(add: Adder) -> None:
    config = add.group(
        "config", "show or change gates and budgets", f"eplbctl config set {EXAMPLE}"
    )
    get = config("get", reads.config_get, "show settings", "eplbctl config get budget.max_moves")
    get.add_argument("names", nargs="*", metavar="NAME", help="default: all that can be changed")
    change = config.act(
        "set", acts.config_set, "change settings, all or none", f"eplbctl config set {EXAMPLE}"
    )
    change.add_argument(
        "values",
        nargs="+",
        type=assignment,
        metavar="NAME=VALUE",
        help="a value is JSON or a word; null goes back to what the service was started with",
    )

    policy = add.group("policy", "choose the policy", "eplbctl policy set incremental")
    choose = policy.act(
        "set",
        acts.policy_set,
        "plan by another policy from now on; `config set planning.policy=NAME` in short",
        "eplbctl policy set incremental",
    )
    choose.add_argument("name", metavar="NAME", help="a policy, or null for the configured one")


def _say_what_to_plan(parser: ArgumentParser) -> None:
    parser.add_argument("--policy", default="", metavar="NAME", help="default: the configured one")
    parser.add_argument(
        "--layers",
        type=layers,
        default=(),
        metavar="N",
        help="MoE layers that may change: 3, 0-7 or 0,4,8-11 (default: all)",
    )


def _name_plan(parser: ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="id of the plan, as `plan` printed it")
