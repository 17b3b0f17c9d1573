"""Verbs that change nothing."""

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace

from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, Exit, invalid
from eplb_service.cli.files import write_whole
from eplb_service.cli.options import Options, Output
from eplb_service.cli.plain import Plain, plain
from eplb_service.cli.show_plan import UNCHANGED, explain_plan, objections, show_answer
from eplb_service.cli.show_status import (
    heat_csv,
    show_config,
    show_heat,
    show_history,
    show_refusals,
    show_statuses,
)
from eplb_service.controller.desk import PlanRequest
from eplb_service.controller.views import NothingView
from eplb_service.domain import plan as plans
from eplb_service.server.admin_wire.plans import (
    ShownPlan,
    decode_answer,
    decode_history,
    decode_plan,
)
from eplb_service.server.admin_wire.requests import encode_spec
from eplb_service.server.admin_wire.status import decode_heat, decode_refusal, decode_status


def status(client: Client, options: Options, args: Namespace) -> Answer:
    """Show how deployments stand."""
    del args
    request = pb.StatusRequest(deployment=options.deployment)
    response = client.ask(client.stub.Status, request)
    views = tuple(decode_status(message) for message in response.deployments)
    refused = tuple(decode_refusal(message) for message in response.refused)
    # The tree is an array of deployments, and a rank that is in none has no place in it.
    told = "" if options.output is Output.TABLE else "\n".join(show_refusals(refused))
    return Answer(show_statuses(views, refused), plain(views), complaint=told)


def heat(client: Client, options: Options, args: Namespace) -> Answer:
    """Show how many tokens each expert got."""
    request = pb.HeatRequest(deployment=options.deployment, layers=args.layers)
    view = decode_heat(client.ask(client.stub.Heat, request))
    return Answer(heat_csv(view) if args.csv else show_heat(view), plain(view))


def plan(client: Client, options: Options, args: Namespace) -> Answer:
    """Draw a plan on paper."""
    spec = encode_spec(plan_request(options, args))
    response = client.ask(client.stub.Plan, pb.PlanRequest(spec=spec))
    answer = decode_answer(response.answer)
    ended = drawn(answer)
    return (
        replace(ended, exit=Exit.WOULD_CHANGE) if args.exit_code and would_change(answer) else ended
    )


def explain(client: Client, options: Options, args: Namespace) -> Answer:
    """Show a plan with every gate that spoke."""
    request = pb.ExplainRequest(deployment=options.deployment, plan_id=args.plan)
    view = decode_plan(client.ask(client.stub.Explain, request).plan)
    return Answer(explain_plan(view), plain(view))


def history(client: Client, options: Options, args: Namespace) -> Answer:
    """Show what happened."""
    request = pb.HistoryRequest(deployment=options.deployment, limit=args.limit)
    view = decode_history(client.ask(client.stub.History, request))
    return Answer(show_history(view), plain(view))


def config_get(client: Client, options: Options, args: Namespace) -> Answer:
    """Show settings that operators may change."""
    request = pb.GetConfigRequest(deployment=options.deployment)
    values = dict(client.ask(client.stub.GetConfig, request).values)
    names: list[str] = args.names or sorted(values)
    unknown = [name for name in names if name not in values]
    if unknown:
        raise invalid(
            f"{', '.join(unknown)}: no such setting; `eplbctl config get` shows all that can be set"
        )
    return config_answer({name: values[name] for name in names})


def export(client: Client, options: Options, args: Namespace) -> Answer:
    """Write a placement down as an expert map."""
    request = pb.ExportRequest(deployment=options.deployment, epoch=args.epoch)
    text = client.ask(client.stub.Export, request).text
    if args.file is None:
        return Answer(text.rstrip("\n"), plain_json(text))
    write_whole(args.file, text.encode())
    return Answer(f"written to {args.file}", {"file": str(args.file)})


def drawn(answer: ShownPlan | NothingView) -> Answer:
    """Show a plan that was only drawn, and what starts it."""
    return Answer(f"{show_answer(answer)}\n\n{_advice(answer)}", answer_tree(answer))


def plan_request(options: Options, args: Namespace) -> PlanRequest:
    """Say what is asked of a plan."""
    who = options.who
    return PlanRequest(options.deployment, args.policy, args.layers, args.reason, who)


def would_change(answer: ShownPlan | NothingView) -> bool:
    """Whether carrying the plan out would change anything: it has moves and no gate says no."""
    return (
        isinstance(answer, ShownPlan)
        and answer.plan.price.num_moves > 0
        and answer.verdict.answer is not plans.Answer.NO
    )


def answer_tree(answer: ShownPlan | NothingView) -> Plain:
    """One shape for both: `plan` is null where there is nothing to do, else `nothing` is."""
    if isinstance(answer, ShownPlan):
        return {"plan": plain(answer), "nothing": None}
    return {"plan": None, "nothing": plain(answer)}


def config_answer(values: Mapping[str, str]) -> Answer:
    """Show settings; for machines with their values, not the JSON of them."""
    tree: Plain = {name: plain_json(values[name]) for name in sorted(values)}
    return Answer(show_config(values), tree)


def plain_json(text: str) -> Plain:
    """Read JSON that the controller wrote."""
    return plain(json.loads(text))


def _advice(answer: ShownPlan | NothingView) -> str:
    if isinstance(answer, NothingView):
        return UNCHANGED
    if answer.verdict.answer is plans.Answer.NO:
        return f"{UNCHANGED} Why: {objections(answer.verdict)}; eplbctl explain {_id(answer)}"
    return f"{UNCHANGED} To carry it out: eplbctl apply {_id(answer)}"


def _id(answer: ShownPlan) -> str:
    return answer.plan.plan_id
