"""Does balancing pay here? Worth trying, not now, or not enough evidence; with the numbers.

Axes    T windows   L MoE layers   E logical experts
"""

import json
from argparse import Namespace
from dataclasses import dataclass, replace
from math import inf, isnan, nan

from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.acts import only_status
from eplb_service.cli.client import Client
from eplb_service.cli.costs import Costs, costs_of, payback, topology_of
from eplb_service.cli.ends import Answer, invalid
from eplb_service.cli.loads import Loads, read_loads
from eplb_service.cli.options import Options
from eplb_service.cli.plain import Plain, plain
from eplb_service.cli.show_plan import objections
from eplb_service.cli.starts import starts
from eplb_service.cli.what_if import evenness, outcome
from eplb_service.cli.words import NO_DATA, count, figure, line
from eplb_service.controller.desk import PlanRequest
from eplb_service.controller.sharing import noise
from eplb_service.controller.views import NothingView, StatusView
from eplb_service.domain import plan as plans
from eplb_service.domain.errors import EplbError
from eplb_service.domain.heat import mean_with_data
from eplb_service.domain.ids import FloatArray
from eplb_service.gates.advice import Advice, Advised, Prospects, advise
from eplb_service.gates.context import Evidence
from eplb_service.gates.settings import GateSettings
from eplb_service.gates.timely import lacking
from eplb_service.server.admin_wire.plans import decode_answer
from eplb_service.server.admin_wire.requests import encode_spec

DEFAULTS = GateSettings()
LACKING = "insufficient_samples"
POLICIES = ("incremental", "connected")
"""What a file's load is planned by where nothing is said."""
HORIZON = "gates.max_payback_steps"


@dataclass(frozen=True, slots=True)
class Basis:
    """What advice rests on."""

    prospects: Prospects
    source: str
    """Where the numbers come from, in words."""
    calm: str = ""
    """Why there is nothing that a plan could do, in words; empty where there is."""
    objections: str = ""
    """Gates that would hold a plan back now."""


def analyze(client: Client, options: Options, args: Namespace) -> Answer:
    """Advise, from a file of load, from numbers alone, or from the controller's own window."""
    given = (args.imbalance_now is not None, args.imbalance_then is not None)
    if any(given) and (not all(given) or args.file is not None):
        raise invalid("--imbalance-now and --imbalance-then belong together, without a FILE")
    if all(given):
        basis = _of_numbers(args)
    elif args.file is not None:
        basis = _of_file(args)
    else:
        basis = _of_controller(client, options, args)
    advised = (
        Advised(Advice.NOT_NOW, 0.0, inf, basis.calm) if basis.calm else advise(basis.prospects)
    )
    return Answer(_shown(basis, advised), _tree(basis, advised))


def _of_numbers(args: Namespace) -> Basis:
    costs = costs_of(args)
    lack = _lack_of_times(costs)
    then: float = args.imbalance_then
    return Basis(_prospects(costs, args, lack, args.imbalance_now, then, 0.0), "what was given")


def _of_file(args: Namespace) -> Basis:
    """Plan for the first half of the windows, and measure on those that came after."""
    loads, costs = read_loads(args.file), costs_of(args)
    half = len(loads.tokens) // 2
    planned = loads.tokens[:half].sum(axis=0) if half else loads.total
    later = loads.tokens[half:].sum(axis=0)
    try:
        [start, *more] = starts(loads, args)
        if more:
            raise invalid("analyze looks at one number of slots; `eplbctl simulate` compares many")
        topology = topology_of(start.layout.num_ranks, args)
        drawn = [outcome(planned, start, policy, topology) for policy in args.policy or POLICIES]
    except EplbError as error:
        raise invalid(f"{error}; nothing was computed") from error
    best, after = min(drawn, key=lambda found: costs.imbalance(found[0].after))
    now, then = (costs.imbalance(evenness(later, placement)) for placement in (start, after))
    counted = noise(later, start.layout.num_ranks)
    source = f"{args.file}, policy {best.policy}, " + (
        f"planned for {half} windows and measured on the {len(loads.tokens) - half} after them"
        if half
        else "measured on the load it was planned for, so the gain is what hindsight gives"
    )
    lack = "; ".join(filter(None, (_lack_of_load(loads, later, now), _lack_of_times(costs))))
    return Basis(_prospects(costs, args, lack, now, then, mean_with_data(_finite(counted))), source)


def _finite(values: FloatArray) -> FloatArray:
    out = values.copy()
    out[~(values < inf)] = nan
    return out


def _lack_of_load(loads: Loads, later: FloatArray, now: float) -> str:
    """What the gates would miss in a window like this; a file of counts knows no steps."""
    loaded = later[later.sum(axis=1) > 0]
    evidence = Evidence(
        num_steps=loads.num_steps if loads.num_steps is not None else DEFAULTS.min_steps,
        coverage=1.0,
        tokens_per_expert=float(loaded.mean()) if loaded.size else 0.0,
        imbalance_mean=now,
        imbalance_worst=now,
    )
    return lacking(evidence, DEFAULTS)


def _lack_of_times(costs: Costs) -> str:
    missing = [
        flag
        for flag, value in (
            ("--step-ms", costs.step_s),
            ("--expert-ms", costs.expert_s),
            ("--stall-ms", costs.stall_s),
        )
        if not value
    ]
    return f"times are not known: say {', '.join(missing)}" if missing else ""


def _prospects(
    costs: Costs, args: Namespace, lack: str, now: float, then: float, feigned: float
) -> Prospects:
    steps: float = args.interval_steps or DEFAULTS.max_payback_steps
    return Prospects(
        lack=lack,
        imbalance_now=now,
        imbalance_then=then,
        noise=0.0 if isnan(feigned) else feigned,
        step_s=costs.step_s,
        expert_s=costs.expert_s,
        stall_s=costs.stall_s,
        horizon_s=steps * costs.step_s,
    )


def _of_controller(client: Client, options: Options, args: Namespace) -> Basis:
    """Have the controller draw a plan on paper, and take what it measured."""
    costs = costs_of(args)
    if len(args.policy) > 1:
        raise invalid("a controller draws by one policy at a time; name one, or none for its own")
    policy: str = args.policy[0] if args.policy else ""
    spec = PlanRequest(options.deployment, policy, (), "analyze", options.who)
    request = pb.PlanRequest(spec=encode_spec(spec))
    answer = decode_answer(client.ask(client.stub.Plan, request).answer)
    if isinstance(answer, NothingView):
        return _of_nothing(only_status(client, options), answer)
    price, verdict = answer.plan.price, answer.verdict
    measured = replace(
        costs,
        step_s=costs.step_s or price.step_s,
        expert_s=costs.expert_s or price.expert_s,
        stall_s=costs.stall_s or price.stall_s,
    )
    lack = "; ".join(f.text for f in verdict.findings if f.gate == LACKING)
    now, then = mean_with_data(price.imbalance_before), mean_with_data(price.imbalance_after)
    if not args.interval_steps:
        asked = pb.GetConfigRequest(deployment=options.deployment)
        values = client.ask(client.stub.GetConfig, asked).values
        args.interval_steps = json.loads(values[HORIZON]) if HORIZON in values else None
    return Basis(
        _prospects(measured, args, lack, now, then, 0.0),
        f"plan {answer.plan.plan_id} by {answer.plan.policy}; {answer.plan.heat_note or NO_DATA}",
        objections=objections(verdict) if verdict.answer is plans.Answer.NO else "",
    )


def _of_nothing(view: StatusView, answer: NothingView) -> Basis:
    now = view.imbalance.mean
    is_lacking = answer.reason == LACKING
    prospects = Prospects(answer.text if is_lacking else "", now, now, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Basis(
        prospects,
        f"{count(view.window.num_steps, 'step')}, coverage {figure(view.window.coverage)}",
        calm="" if is_lacking else f"{answer.reason}: {answer.text}",
    )


def _then_s(told: Prospects) -> float:
    """Expert time after, on the slowest rank; it scales with the imbalance."""
    return told.expert_s * told.imbalance_then / told.imbalance_now if told.imbalance_now else nan


def _steps(told: Prospects, seconds: float) -> float:
    return seconds / told.step_s if told.step_s else nan


def _shown(basis: Basis, advised: Advised) -> str:
    told = basis.prospects
    lines = [line("advice", str(advised.advice)), line("from", basis.source)]
    if basis.calm or advised.advice is Advice.NOT_ENOUGH_EVIDENCE:
        lines.append(line("because", basis.calm or advised.text))
    lines.append(
        line(
            "imbalance",
            f"{figure(told.imbalance_now, 3)} to {figure(told.imbalance_then, 3)}",
            f"{figure(told.noise, 3)} is noise of counting",
        )
    )
    if told.step_s:
        then_s = _then_s(told)
        won_ms = (told.expert_s - then_s) * 1e3
        horizon = _steps(told, told.horizon_s)
        lines += [
            line("step", f"{told.step_s * 1e3:.1f} ms", f"{advised.faster:.1%} of it would be won"),
            line(
                "expert time",
                f"{told.expert_s * 1e3:.2f} to {then_s * 1e3:.2f} ms on the slowest rank",
                f"{won_ms:.2f} ms won a step",
            ),
            line("stall", f"{told.stall_s * 1e3:.0f} ms lost to the plan"),
            line(
                "pay-back",
                payback(_steps(told, advised.payback_s)),
                f"to be within {count(round(horizon), 'step')}",
            ),
        ]
    if basis.objections:
        lines.append(line("held back by", basis.objections))
    return "\n".join(lines)


def _tree(basis: Basis, advised: Advised) -> Plain:
    told = basis.prospects
    is_known = told.step_s > 0
    then_s = _then_s(told) if is_known else nan
    return {
        "advice": advised.advice.name.lower(),
        "text": advised.text,
        "source": basis.source,
        "imbalance_now": plain(told.imbalance_now),
        "imbalance_then": plain(told.imbalance_then),
        "noise": plain(told.noise),
        "step_ms": plain(told.step_s * 1e3) if is_known else None,
        "expert_ms_now": plain(told.expert_s * 1e3) if is_known else None,
        "expert_ms_then": plain(then_s * 1e3),
        "won_ms": plain((told.expert_s - then_s) * 1e3),
        "stall_ms": plain(told.stall_s * 1e3) if is_known else None,
        "payback_steps": plain(_steps(told, advised.payback_s)),
        "interval_steps": plain(_steps(told, told.horizon_s)),
        "held_back_by": basis.objections or None,
    }
