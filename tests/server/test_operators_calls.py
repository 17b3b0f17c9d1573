"""Every verb of operators, over real gRPC: the question arrives, the answer comes back whole."""

import asyncio
from math import inf, nan

import grpc
import grpc.aio
import pytest
from eplb.v1 import admin_pb2 as pb
from eplb.v1 import admin_pb2_grpc
from google.protobuf.message import Message

from eplb_service.controller.desk import ActRequest, MapRequest, PlanRequest
from eplb_service.controller.views import NothingView
from eplb_service.domain.errors import EplbError, InvalidPlacement, PlanOvertaken, UnknownPlan
from eplb_service.domain.plan import Answer, Origin
from eplb_service.server.admin_wire.plans import (
    ANSWER,
    ORIGIN,
    ShownPlan,
    decode_answer,
    decode_history,
    decode_plan,
    decode_run,
    summarize,
)
from eplb_service.server.admin_wire.requests import encode_act, encode_spec
from eplb_service.server.admin_wire.status import decode_heat, decode_status
from tests.server import views
from tests.server.conftest import Served
from tests.server.rank_client import code_of
from tests.wire.plain import plain

Status = grpc.StatusCode
NAME = "m/i/serve/0/g"
ACT = ActRequest(NAME, "request-1", "ada", "evening peak")
SPEC = PlanRequest(NAME, "packing", (1, 0), "evening peak", "ada")
ACT_PB, SPEC_PB = encode_act(ACT), encode_spec(SPEC)


async def ask(served: Served, verb: str, request: Message) -> Message:
    """Call a verb by name."""
    call = getattr(admin_pb2_grpc.AdminServiceStub(served.channel), verb)
    answer = await call(request, timeout=5)
    assert isinstance(answer, Message)
    return answer


async def refusal(served: Served, verb: str, request: Message) -> tuple[grpc.StatusCode, str, str]:
    """Call a verb that is refused: status, code and text."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ask(served, verb, request)
    error = refused.value
    return error.code(), code_of(error.trailing_metadata()), error.details() or ""


VERBS: list[tuple[str, Message, tuple[object, ...]]] = [
    ("Status", pb.StatusRequest(deployment=NAME), ("status", NAME)),
    ("Heat", pb.HeatRequest(deployment=NAME, layers=[1, 0, 1]), ("heat", NAME, (1, 0))),
    ("Plan", pb.PlanRequest(spec=SPEC_PB), ("plan", SPEC)),
    ("Explain", pb.ExplainRequest(deployment=NAME, plan_id="p"), ("explain", NAME, "p")),
    ("History", pb.HistoryRequest(deployment=NAME, limit=9), ("history", NAME, 9)),
    ("Export", pb.ExportRequest(deployment=NAME, epoch=3), ("export", NAME, 3)),
    ("GetConfig", pb.GetConfigRequest(deployment=NAME), ("get_config", NAME)),
    ("GetRun", pb.GetRunRequest(deployment=NAME, plan_id="p"), ("run", NAME, "p")),
    ("Apply", pb.ApplyRequest(act=ACT_PB, plan_id="p"), ("apply", ACT, "p")),
    ("Rebalance", pb.RebalanceRequest(act=ACT_PB, spec=SPEC_PB), ("rebalance", ACT, SPEC)),
    ("Abort", pb.AbortRequest(act=ACT_PB, plan_id="p"), ("abort", ACT, "p")),
    ("Rollback", pb.RollbackRequest(act=ACT_PB, epoch=40), ("rollback", ACT, 40)),
    ("Rollback", pb.RollbackRequest(act=ACT_PB, epoch=0), ("rollback", ACT, 0)),
    ("Rollback", pb.RollbackRequest(act=ACT_PB), ("rollback", ACT, None)),
    ("Freeze", pb.FreezeRequest(act=ACT_PB, seconds=1800), ("freeze", ACT, 1800.0)),
    ("Drain", pb.DrainRequest(act=ACT_PB, rank=5), ("drain", ACT, 5)),
    ("Undrain", pb.UndrainRequest(act=ACT_PB, rank=0), ("undrain", ACT, 0)),
    ("Resume", pb.ResumeRequest(act=ACT_PB, halt_number=2), ("resume", ACT, 2)),
    ("Audit", pb.AuditRequest(below=7, limit=9), ("audited", 7, 9)),
    (
        "SetConfig",
        pb.SetConfigRequest(act=ACT_PB, values={"a": "1"}),
        ("set_config", ACT, {"a": "1"}),
    ),
    (
        "Import",
        pb.ImportRequest(act=ACT_PB, text="{}", reshape=True),
        ("import_map", ACT, MapRequest("{}", may_reshape=True)),
    ),
    (
        "Import",
        pb.ImportRequest(act=ACT_PB, text="{}", dry_run=True),
        ("import_map", ACT, MapRequest("{}", is_dry_run=True)),
    ),
]
IDS = [verb for verb, _, _ in VERBS]


def test_every_verb_of_the_proto_is_tried_here() -> None:
    methods = pb.DESCRIPTOR.services_by_name["AdminService"].methods_by_name
    assert set(IDS) == set(methods)


@pytest.mark.parametrize(("verb", "request_pb", "asked"), VERBS, ids=IDS)
async def test_a_question_reaches_the_desk_as_asked(
    served: Served, verb: str, request_pb: Message, asked: tuple[object, ...]
) -> None:
    await ask(served, verb, request_pb)
    assert served.operators.asked == [asked]


@pytest.mark.parametrize(("verb", "request_pb", "asked"), VERBS, ids=IDS)
async def test_a_refusal_reaches_the_operator(
    served: Served, verb: str, request_pb: Message, asked: tuple[object, ...]
) -> None:
    served.operators.wrong = PlanOvertaken(f"{asked[0]}: epoch 42 is served, not 41")
    said = f"{asked[0]}: epoch 42 is served, not 41"
    assert await refusal(served, verb, request_pb) == (Status.ABORTED, "plan_overtaken", said)


@pytest.mark.parametrize(("verb", "request_pb", "asked"), VERBS, ids=IDS)
async def test_a_failure_without_a_name_stays_inside(
    served: Served,
    verb: str,
    request_pb: Message,
    asked: tuple[object, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.operators.wrong = RuntimeError("secret")
    status, code, text = await refusal(served, verb, request_pb)
    assert (status, code) == (Status.INTERNAL, "internal")
    assert "secret" not in text
    assert "secret" in caplog.text, asked


async def test_status_arrives_whole(served: Served) -> None:
    answer = await ask(served, "Status", pb.StatusRequest())
    assert isinstance(answer, pb.StatusResponse)
    want = (views.a_status(), views.a_quiet_status())
    assert plain(tuple(map(decode_status, answer.deployments))) == plain(want)


async def test_heat_arrives_whole(served: Served) -> None:
    answer = await ask(served, "Heat", pb.HeatRequest())
    assert isinstance(answer, pb.HeatResponse)
    assert plain(decode_heat(answer)) == plain(views.a_heat())


async def test_history_arrives_whole(served: Served) -> None:
    answer = await ask(served, "History", pb.HistoryRequest(limit=2))
    assert isinstance(answer, pb.HistoryResponse)
    assert plain(decode_history(answer)) == plain(views.a_history())


async def test_a_run_arrives_whole(served: Served) -> None:
    answer = await ask(served, "GetRun", pb.GetRunRequest(plan_id="7f3a"))
    assert isinstance(answer, pb.GetRunResponse)
    assert plain(decode_run(answer.run)) == plain(views.a_run())


async def test_a_plan_arrives_with_everything_but_its_placements(served: Served) -> None:
    answer = await ask(served, "Explain", pb.ExplainRequest(plan_id="7f3a"))
    assert isinstance(answer, pb.ExplainResponse)
    view = views.a_plan()
    shown = decode_plan(answer.plan)
    assert plain(shown.plan) == plain(summarize(view.plan))
    assert plain(shown.verdict) == plain(view.verdict)
    told = (shown.deployment, shown.phase, shown.is_dry_run, shown.drawn_at_s)
    assert told == (view.deployment, view.phase, view.is_dry_run, view.drawn_at_s)


async def test_a_plan_or_nothing_arrives_as_what_it_is(served: Served) -> None:
    answer = await ask(served, "Plan", pb.PlanRequest(spec=SPEC_PB))
    assert isinstance(answer, pb.PlanResponse)
    assert isinstance(decode_answer(answer.answer), ShownPlan)
    served.operators.answer = NothingView(NAME, "balanced", "imbalance is 1.02")
    answer = await ask(served, "Plan", pb.PlanRequest(spec=SPEC_PB))
    assert isinstance(answer, pb.PlanResponse)
    assert decode_answer(answer.answer) == served.operators.answer


def test_every_word_of_a_verdict_has_a_number() -> None:
    assert ANSWER.words == set(Answer)
    assert ORIGIN.words == set(Origin)


@pytest.mark.parametrize(
    ("verb", "request_pb", "said"),
    [
        ("Heat", pb.HeatRequest(layers=[-1]), "layers is -1"),
        ("Plan", pb.PlanRequest(), "PlanRequest came without its spec"),
        ("Explain", pb.ExplainRequest(), "plan_id is empty"),
        ("History", pb.HistoryRequest(), "limit is 0; expected 1 to 10000"),
        ("History", pb.HistoryRequest(limit=10_001), "limit is 10001"),
        ("Export", pb.ExportRequest(epoch=-1), "epoch is -1"),
        ("GetRun", pb.GetRunRequest(), "plan_id is empty"),
        ("Apply", pb.ApplyRequest(plan_id="p"), "ApplyRequest came without its act"),
        ("Apply", pb.ApplyRequest(act=ACT_PB), "plan_id is empty"),
        ("Apply", pb.ApplyRequest(act=pb.Act(), plan_id="p"), "act.request_id has 0 characters"),
        ("Abort", pb.AbortRequest(act=pb.Act(request_id="r" * 129)), "has 129 characters"),
        ("Rebalance", pb.RebalanceRequest(act=ACT_PB), "without its spec"),
        (
            "Abort",
            pb.AbortRequest(act=pb.Act(request_id="r", reason="x" * 1001), plan_id="p"),
            "act.reason has 1001 characters; expected at most 1000",
        ),
        (
            "Abort",
            pb.AbortRequest(act=pb.Act(request_id="r", who="x" * 257), plan_id="p"),
            "act.who has 257 characters; expected at most 256",
        ),
        (
            "Plan",
            pb.PlanRequest(spec=pb.PlanSpec(reason="x" * 1001)),
            "spec.reason has 1001 characters; expected at most 1000",
        ),
        (
            "Rebalance",
            pb.RebalanceRequest(act=ACT_PB, spec=pb.PlanSpec(deployment="other")),
            "and spec 'other'; expected the same",
        ),
        ("Rollback", pb.RollbackRequest(act=ACT_PB, epoch=-1), "epoch is -1"),
        ("Freeze", pb.FreezeRequest(act=ACT_PB, seconds=nan), "seconds is nan"),
        ("Freeze", pb.FreezeRequest(act=ACT_PB, seconds=inf), "seconds is inf"),
        ("Freeze", pb.FreezeRequest(act=ACT_PB, seconds=-1), "seconds is -1"),
        ("Drain", pb.DrainRequest(act=ACT_PB, rank=-1), "rank is -1"),
        ("Undrain", pb.UndrainRequest(rank=0), "without its act"),
        ("Resume", pb.ResumeRequest(act=ACT_PB, halt_number=-1), "halt_number is -1"),
        ("SetConfig", pb.SetConfigRequest(), "without its act"),
        ("Import", pb.ImportRequest(), "without its act"),
    ],
)
async def test_a_question_that_makes_no_sense_never_reaches_the_desk(
    served: Served, verb: str, request_pb: Message, said: str
) -> None:
    status, code, text = await refusal(served, verb, request_pb)
    assert (status, code) == (Status.INVALID_ARGUMENT, "invalid_request")
    assert said in text
    assert not served.operators.asked


@pytest.mark.parametrize(
    "error",
    [
        UnknownPlan("no plan \u00fcber-1\nis kept"),
        InvalidPlacement("layer 3: expert 7 is missing; " * 2_000),
        InvalidPlacement("%" * 5_000),
    ],
    ids=["letters", "long", "encoded"],
)
async def test_any_text_of_a_failure_gets_through(served: Served, error: EplbError) -> None:
    served.operators.wrong = error
    status, code, text = await refusal(served, "Status", pb.StatusRequest())
    assert status is not Status.INTERNAL
    assert code == error.code
    assert text[:8] == str(error)[:8]
    assert len(text) <= 2_000


async def test_an_act_is_finished_though_its_client_leaves(served: Served) -> None:
    operators = served.operators
    operators.gate = asyncio.Event()
    stub = admin_pb2_grpc.AdminServiceStub(served.channel)
    call = stub.Apply(pb.ApplyRequest(act=ACT_PB, plan_id="p"))
    async with asyncio.timeout(5):
        await operators.entered.wait()
        call.cancel()
        await ask(served, "Status", pb.StatusRequest())  # the server has seen the cancellation
        operators.gate.set()
        await operators.applied.wait()
