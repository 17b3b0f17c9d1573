"""The operators' service: one method per verb, each a translation around one call of a desk."""

# ruff: noqa: N802 - the methods are named by admin.proto

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import grpc.aio
from eplb.v1 import admin_pb2 as pb
from google.protobuf.message import Message

from eplb_service.controller.auditing import AuditBook
from eplb_service.controller.desk import (
    ActDesk,
    ActRequest,
    DrainDesk,
    MapRequest,
    OperatorDesk,
    RankDesk,
    RunDesk,
)
from eplb_service.domain.errors import InvalidRequest
from eplb_service.server.admin_wire.audit import encode_audit
from eplb_service.server.admin_wire.plans import (
    encode_answer,
    encode_history,
    encode_plan,
    encode_run,
)
from eplb_service.server.admin_wire.requests import (
    decode_act,
    decode_layers,
    decode_limit,
    decode_plan_id,
    decode_seconds,
    decode_spec,
)
from eplb_service.server.admin_wire.status import encode_heat, encode_refusal, encode_status
from eplb_service.server.calls import Answering, to_the_end
from eplb_service.server.gate import admission
from eplb_service.wire.scalars import natural, require

Context = grpc.aio.ServicerContext[Message, Message]
Verbs = TypeVar("Verbs")
Response = TypeVar("Response")
Question = TypeVar("Question", bound=Message)
Change = TypeVar(
    "Change",
    pb.ApplyRequest,
    pb.RebalanceRequest,
    pb.AbortRequest,
    pb.RollbackRequest,
    pb.FreezeRequest,
    pb.ResumeRequest,
    pb.SetConfigRequest,
    pb.ImportRequest,
    pb.DrainRequest,
    pb.UndrainRequest,
)
Answered = Coroutine[Any, Any, Response]
Method = Callable[[Verbs, Question, Context], Answered[Response]]


def reads(
    answer: Callable[[Verbs, Question], Answered[Response]],
) -> Method[Verbs, Question, Response]:
    """Make a method of a translation; what fails in it ends the call with its status."""

    @wraps(answer)
    async def method(self: Verbs, request: Question, context: Context) -> Response:
        async with Answering(context):
            return await answer(self, request)

    return method


def changes(
    answer: Callable[[Verbs, Change, ActRequest], Answered[Response]],
) -> Method[Verbs, Change, Response]:
    """Make a method of a verb that changes something: who asks is known, and it runs to its end.

    A name that was proved goes before one that was said.
    """

    @wraps(answer)
    async def method(self: Verbs, request: Change, context: Context) -> Response:
        async with Answering(context):
            require(request, "act")
            act = decode_act(request.act)
            signed = replace(act, who=admission().signed(act.who))
            return await to_the_end(answer(self, request, signed))

    return method


class ReadService:
    """Verbs that change nothing."""

    def __init__(self, operators: OperatorDesk, runs: RunDesk, ranks: RankDesk) -> None:
        self._operators = operators
        self._ranks = ranks
        self._runs = runs

    @reads
    async def Status(self, request: pb.StatusRequest) -> pb.StatusResponse:
        """How deployments stand."""
        views = await self._operators.status(request.deployment)
        return pb.StatusResponse(
            deployments=[encode_status(view) for view in views],
            refused=[
                encode_refusal(refusal) for refusal in self._ranks.refused(request.deployment)
            ],
        )

    @reads
    async def Heat(self, request: pb.HeatRequest) -> pb.HeatResponse:
        """Heat of the newest window."""
        layers = decode_layers(request.layers)
        return encode_heat(await self._operators.heat(request.deployment, layers))

    @reads
    async def Plan(self, request: pb.PlanRequest) -> pb.PlanResponse:
        """Draw, price and judge a plan."""
        require(request, "spec")
        spec = decode_spec(request.spec)
        view = await self._operators.plan(replace(spec, who=admission().signed(spec.who)))
        return pb.PlanResponse(answer=encode_answer(view))

    @reads
    async def Explain(self, request: pb.ExplainRequest) -> pb.ExplainResponse:
        """Show a kept plan."""
        plan_id = decode_plan_id(request.plan_id)
        view = await self._operators.explain(request.deployment, plan_id)
        return pb.ExplainResponse(plan=encode_plan(view))

    @reads
    async def History(self, request: pb.HistoryRequest) -> pb.HistoryResponse:
        """What happened."""
        limit = decode_limit(request.limit)
        return encode_history(await self._operators.history(request.deployment, limit))

    @reads
    async def Export(self, request: pb.ExportRequest) -> pb.ExportResponse:
        """The placement of an epoch."""
        epoch = natural(request.epoch, "epoch")
        return pb.ExportResponse(text=await self._operators.export(request.deployment, epoch))

    @reads
    async def GetConfig(self, request: pb.GetConfigRequest) -> pb.GetConfigResponse:
        """Settings."""
        return pb.GetConfigResponse(values=await self._operators.get_config(request.deployment))

    @reads
    async def GetRun(self, request: pb.GetRunRequest) -> pb.GetRunResponse:
        """How an applied plan stands."""
        plan_id = decode_plan_id(request.plan_id)
        return pb.GetRunResponse(run=encode_run(await self._runs.run(request.deployment, plan_id)))


class ActService:
    """Verbs that change something; they run to their end though the client may leave."""

    def __init__(self, acts: ActDesk) -> None:
        self._acts = acts

    @changes
    async def Apply(self, request: pb.ApplyRequest, act: ActRequest) -> pb.ApplyResponse:
        """Start a kept plan."""
        view = await self._acts.apply(act, decode_plan_id(request.plan_id))
        return pb.ApplyResponse(run=encode_run(view))

    @changes
    async def Rebalance(
        self, request: pb.RebalanceRequest, act: ActRequest
    ) -> pb.RebalanceResponse:
        """Plan and apply."""
        require(request, "spec")
        spec = decode_spec(request.spec)
        if act.deployment != spec.deployment:
            raise InvalidRequest(
                f"act names deployment {act.deployment!r} and spec {spec.deployment!r}; "
                "expected the same; nothing changed"
            )
        view = await self._acts.rebalance(act, spec)
        return pb.RebalanceResponse(answer=encode_answer(view))

    @changes
    async def Abort(self, request: pb.AbortRequest, act: ActRequest) -> pb.AbortResponse:
        """End a plan after its running wave."""
        view = await self._acts.abort(act, decode_plan_id(request.plan_id))
        return pb.AbortResponse(run=encode_run(view))

    @changes
    async def Rollback(self, request: pb.RollbackRequest, act: ActRequest) -> pb.RollbackResponse:
        """Go back to an earlier placement."""
        epoch = natural(request.epoch, "epoch")
        view = await self._acts.rollback(act, epoch if request.HasField("epoch") else None)
        return pb.RollbackResponse(answer=encode_answer(view))

    @changes
    async def Freeze(self, request: pb.FreezeRequest, act: ActRequest) -> pb.FreezeResponse:
        """Allow no automatic plan for a time."""
        view = await self._acts.freeze(act, decode_seconds(request.seconds))
        return pb.FreezeResponse(status=encode_status(view))

    @changes
    async def Resume(self, request: pb.ResumeRequest, act: ActRequest) -> pb.ResumeResponse:
        """Ask all ranks to clear a halt."""
        view = await self._acts.resume(act, natural(request.halt_number, "halt_number"))
        return pb.ResumeResponse(status=encode_status(view))

    @changes
    async def SetConfig(
        self, request: pb.SetConfigRequest, act: ActRequest
    ) -> pb.SetConfigResponse:
        """Change settings."""
        return pb.SetConfigResponse(values=await self._acts.set_config(act, dict(request.values)))

    @changes
    async def Import(self, request: pb.ImportRequest, act: ActRequest) -> pb.ImportResponse:
        """Apply a plan to the placement of a file."""
        wanted = MapRequest(request.text, request.reshape, request.dry_run)
        view = await self._acts.import_map(act, wanted)
        return pb.ImportResponse(answer=encode_answer(view))


class DrainService:
    """Verbs that take ranks out and let them in; they run to their end likewise."""

    def __init__(self, drains: DrainDesk) -> None:
        self._drains = drains

    @changes
    async def Drain(self, request: pb.DrainRequest, act: ActRequest) -> pb.DrainResponse:
        """Empty a rank."""
        view = await self._drains.drain(act, natural(request.rank, "rank"))
        return pb.DrainResponse(answer=encode_answer(view))

    @changes
    async def Undrain(self, request: pb.UndrainRequest, act: ActRequest) -> pb.UndrainResponse:
        """Let a rank be used again."""
        view = await self._drains.undrain(act, natural(request.rank, "rank"))
        return pb.UndrainResponse(answer=encode_answer(view))


class AuditService:
    """What operators did."""

    def __init__(self, book: AuditBook | None) -> None:
        self._book = book

    @reads
    async def Audit(self, request: pb.AuditRequest) -> pb.AuditResponse:
        """Entries, newest first."""
        if self._book is None:
            raise InvalidRequest("this controller keeps no audit")
        below, limit = natural(request.below, "below"), decode_limit(request.limit)
        return encode_audit(await self._book.audited(below, limit))


class AdminService(ReadService, ActService, DrainService, AuditService):
    """All verbs of operators."""

    def __init__(
        self,
        operators: OperatorDesk,
        acts: ActDesk,
        runs: RunDesk,
        ranks: RankDesk,
        audit: AuditBook | None = None,
    ) -> None:
        ReadService.__init__(self, operators, runs, ranks)
        ActService.__init__(self, acts)
        DrainService.__init__(self, acts)
        AuditService.__init__(self, audit)
