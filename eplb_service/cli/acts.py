"""Verbs that change something; each says what it changes, and acts once by its request id."""

import json
from argparse import Namespace

from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.client import Client
from eplb_service.cli.ends import Absent, Answer, Exit, invalid
from eplb_service.cli.maps import ascend_text
from eplb_service.cli.options import Options
from eplb_service.cli.plain import plain
from eplb_service.cli.reads import answer_tree, config_answer, drawn, plan_request
from eplb_service.cli.show_plan import objections, show_answer, show_run
from eplb_service.cli.show_status import show_status
from eplb_service.cli.waiting import until
from eplb_service.cli.words import count
from eplb_service.controller.desk import ActRequest
from eplb_service.controller.views import NothingView, RunView, StatusView
from eplb_service.domain import plan as plans
from eplb_service.server.admin_wire.plans import ShownPlan, decode_answer, decode_run
from eplb_service.server.admin_wire.requests import encode_act, encode_spec
from eplb_service.server.admin_wire.status import decode_status

POLL_S = 0.5
POLICY = "planning.policy"
"""The setting."""
STATES = frozenset({"freeze", "halt", "cooldown"})
"""Gates that refuse because of the state and not because of the plan."""
UNDER_WAY = ("drafted", "admitted", "running")
STOPPED_SHORT = ("stopped", "rejected", "expired")


def apply(client: Client, options: Options, args: Namespace) -> Answer:
    """Start a plan that was drawn before."""
    request = pb.ApplyRequest(act=act(options, args), plan_id=args.plan)
    run = decode_run(client.act(client.stub.Apply, request, options.request_id).run)
    return run_answer(finished(client, options, args.plan) if args.wait else run)


def rebalance(client: Client, options: Options, args: Namespace) -> Answer:
    """Draw a plan and carry it out unless its verdict is no."""
    spec = encode_spec(plan_request(options, args))
    request = pb.RebalanceRequest(act=act(options, args), spec=spec)
    response = client.act(client.stub.Rebalance, request, options.request_id)
    return carried_out(client, options, args, decode_answer(response.answer))


def rollback(client: Client, options: Options, args: Namespace) -> Answer:
    """Return to the placement of an earlier epoch, under a new number."""
    request = pb.RollbackRequest(act=act(options, args), epoch=args.to)
    response = client.act(client.stub.Rollback, request, options.request_id)
    return carried_out(client, options, args, decode_answer(response.answer))


def import_map(client: Client, options: Options, args: Namespace) -> Answer:
    """Go to the placement of an expert-map file."""
    text = ascend_text(args)
    request = pb.ImportRequest(
        act=act(options, args), text=text, reshape=args.reshape, dry_run=args.dry_run
    )
    response = client.act(client.stub.Import, request, options.request_id)
    answer = decode_answer(response.answer)
    return drawn(answer) if args.dry_run else carried_out(client, options, args, answer)


def abort(client: Client, options: Options, args: Namespace) -> Answer:
    """End a plan after its running wave."""
    request = pb.AbortRequest(act=act(options, args), plan_id=args.plan)
    run = decode_run(client.act(client.stub.Abort, request, options.request_id).run)
    return Answer(show_run(run), plain(run))


def freeze(client: Client, options: Options, args: Namespace) -> Answer:
    """Allow no automatic plan for a time; 0 seconds lifts it."""
    request = pb.FreezeRequest(act=act(options, args), seconds=args.seconds)
    response = client.act(client.stub.Freeze, request, options.request_id)
    return status_answer(decode_status(response.status))


def drain(client: Client, options: Options, args: Namespace) -> Answer:
    """Empty a rank, and give it nothing from now on."""
    request = pb.DrainRequest(act=act(options, args), rank=args.rank)
    response = client.act(client.stub.Drain, request, options.request_id)
    return carried_out(client, options, args, decode_answer(response.answer))


def undrain(client: Client, options: Options, args: Namespace) -> Answer:
    """Let a rank be used again."""
    request = pb.UndrainRequest(act=act(options, args), rank=args.rank)
    response = client.act(client.stub.Undrain, request, options.request_id)
    return carried_out(client, options, args, decode_answer(response.answer))


def resume(client: Client, options: Options, args: Namespace) -> Answer:
    """Ask all ranks to clear a halt."""
    number = args.halt
    if number is None:
        view = only_status(client, options)
        if not view.operation.halt.is_active:
            return Answer(f"nothing to do: no halt stands at {view.deployment}", plain(view))
        number = view.operation.halt.number
    request = pb.ResumeRequest(act=act(options, args), halt_number=number)
    response = client.act(client.stub.Resume, request, options.request_id)
    return status_answer(decode_status(response.status))


def config_set(client: Client, options: Options, args: Namespace) -> Answer:
    """Change settings, all or none."""
    given: list[tuple[str, str]] = args.values
    values = {name: as_json_value(value) for name, value in given}
    if len(values) < len(given):
        raise invalid("a setting is named twice; nothing was changed")
    request = pb.SetConfigRequest(act=act(options, args), values=values)
    response = client.act(client.stub.SetConfig, request, options.request_id)
    return config_answer(dict(response.values))


def policy_set(client: Client, options: Options, args: Namespace) -> Answer:
    """Plan by another policy from now on."""
    args.values = [(POLICY, args.name)]
    return config_set(client, options, args)


def act(options: Options, args: Namespace) -> pb.Act:
    """Say who asks, why and under which id."""
    return encode_act(ActRequest(options.deployment, options.request_id, options.who, args.reason))


def as_json_value(text: str) -> str:
    """Return JSON: the text where it is some, else the text as a word.

    >>> as_json_value("0.5"), as_json_value("true"), as_json_value("serve")
    ('0.5', 'true', '"serve"')
    """
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text


def only_status(client: Client, options: Options) -> StatusView:
    """Return the state of the deployment that is meant; raises Failure where several may be."""
    request = pb.StatusRequest(deployment=options.deployment)
    found = client.ask(client.stub.Status, request).deployments
    if len(found) != 1:
        names = ", ".join(message.deployment for message in found) or "none yet"
        which = f"which deployment? Name one with --deployment; known: {names}"
        raise invalid(which) if found else Absent(Exit.INVALID, which)
    return decode_status(found[0])


def carried_out(
    client: Client, options: Options, args: Namespace, answer: ShownPlan | NothingView
) -> Answer:
    """Show what came of a plan that was to be carried out at once."""
    shown = Answer(show_answer(answer), answer_tree(answer))
    if isinstance(answer, NothingView):
        return shown
    plan_id = answer.plan.plan_id
    if answer.phase == "rejected" or answer.verdict.answer is plans.Answer.NO:
        why = f"plan {plan_id} was judged no by {objections(answer.verdict)}; nothing was changed"
        says_no = {f.gate for f in answer.verdict.findings if f.answer is plans.Answer.NO}
        end = Exit.REFUSED if says_no & STATES else Exit.FAILED
        return Answer(shown.text, shown.tree, end, f"refused: {why}")
    if not args.wait:
        return shown
    ended = run_answer(finished(client, options, plan_id))
    tree = {"plan": plain(answer), "nothing": None, "run": ended.tree}
    return Answer(f"{shown.text}\n\n{ended.text}", tree, ended.exit, ended.complaint)


def finished(client: Client, options: Options, plan_id: str) -> RunView:
    """Wait until a plan is over; raises Failure at the deadline."""
    request = pb.GetRunRequest(deployment=options.deployment, plan_id=plan_id)
    run: RunView | None = None

    def is_over() -> bool:
        nonlocal run
        run = decode_run(client.ask(client.stub.GetRun, request).run)
        return run.phase not in UNDER_WAY

    def how_far() -> str:
        return f"epoch {run.epoch}, {count(run.moves, 'slot')} moved, " if run else ""

    until(client, is_over, every_s=POLL_S, what=f"plan {plan_id}", how_far=how_far)
    assert run is not None
    return run


def run_answer(run: RunView) -> Answer:
    """Show how a plan stands; one that ended early is a failure of a command that waited."""
    if run.phase not in STOPPED_SHORT:
        return Answer(show_run(run), plain(run))
    complaint = f"failed: plan {run.plan_id} is {run.phase}: {run.text}; what stands is valid"
    return Answer(show_run(run), plain(run), Exit.FAILED, complaint)


def status_answer(view: StatusView) -> Answer:
    """Show how the deployment stands now."""
    return Answer(show_status(view), plain(view))
