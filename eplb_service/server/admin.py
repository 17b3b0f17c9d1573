"""The operators' service: one method per verb, each a translation around one call of a desk."""

# ruff: noqa: N802 - the methods are named by admin.proto

from dataclasses import replace

import grpc.aio
from eplb.v1 import admin_pb2 as pb
from eplb.v1 import admin_pb2_grpc
from google.protobuf.message import Message

from eplb_service.controller.auditing import AuditBook
from eplb_service.controller.desk import ActDesk, ActRequest, DrainDesk, OperatorDesk, RunDesk
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
from eplb_service.server.admin_wire.status import encode_heat, encode_status
from eplb_service.server.calls import Answering, to_the_end
from eplb_service.server.gate import admission
from eplb_service.wire.scalars import natural, require

Context = grpc.aio.ServicerContext[Message, Message]


def signed_act(message: pb.Act) -> ActRequest:
    """Translate who asks for a change; a name that was proved goes before one that was said."""
    act = decode_act(message)
    return replace(act, who=admission().signed(act.who))


class ReadService(admin_pb2_grpc.AdminServiceServicer):
    """Verbs that change nothing."""

    def __init__(self, operators: OperatorDesk, runs: RunDesk) -> None:
        self._operators = operators
        self._runs = runs

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusResponse:
        """How deployments stand."""
        async with Answering(context):
            views = await self._operators.status(request.deployment)
            return pb.StatusResponse(deployments=[encode_status(view) for view in views])

    async def Heat(self, request: pb.HeatRequest, context: Context) -> pb.HeatResponse:
        """Heat of the newest window."""
        async with Answering(context):
            layers = decode_layers(request.layers)
            return encode_heat(await self._operators.heat(request.deployment, layers))

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        """Draw, price and judge a plan."""
        async with Answering(context):
            require(request, "spec")
            view = await self._operators.plan(decode_spec(request.spec))
            return pb.PlanResponse(answer=encode_answer(view))

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Show a kept plan."""
        async with Answering(context):
            plan_id = decode_plan_id(request.plan_id)
            view = await self._operators.explain(request.deployment, plan_id)
            return pb.ExplainResponse(plan=encode_plan(view))

    async def History(self, request: pb.HistoryRequest, context: Context) -> pb.HistoryResponse:
        """What happened."""
        async with Answering(context):
            limit = decode_limit(request.limit)
            return encode_history(await self._operators.history(request.deployment, limit))

    async def Export(self, request: pb.ExportRequest, context: Context) -> pb.ExportResponse:
        """The placement of an epoch."""
        async with Answering(context):
            epoch = natural(request.epoch, "epoch")
            return pb.ExportResponse(text=await self._operators.export(request.deployment, epoch))

    async def GetConfig(
        self, request: pb.GetConfigRequest, context: Context
    ) -> pb.GetConfigResponse:
        """Settings."""
        async with Answering(context):
            return pb.GetConfigResponse(values=await self._operators.get_config(request.deployment))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        """How an applied plan stands."""
        async with Answering(context):
            plan_id = decode_plan_id(request.plan_id)
            return pb.GetRunResponse(
                run=encode_run(await self._runs.run(request.deployment, plan_id))
            )


class ActService(admin_pb2_grpc.AdminServiceServicer):
    """Verbs that change something; they run to their end though the client may leave."""

    def __init__(self, acts: ActDesk) -> None:
        self._acts = acts

    async def Apply(self, request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:
        """Start a kept plan."""
        async with Answering(context):
            require(request, "act")
            act, plan_id = signed_act(request.act), decode_plan_id(request.plan_id)
            view = await to_the_end(self._acts.apply(act, plan_id))
            return pb.ApplyResponse(run=encode_run(view))

    async def Rebalance(
        self, request: pb.RebalanceRequest, context: Context
    ) -> pb.RebalanceResponse:
        """Plan and apply."""
        async with Answering(context):
            require(request, "act", "spec")
            act, spec = signed_act(request.act), decode_spec(request.spec)
            if act.deployment != spec.deployment:
                raise InvalidRequest(
                    f"act names deployment {act.deployment!r} and spec {spec.deployment!r}; "
                    "expected the same; nothing changed"
                )
            view = await to_the_end(self._acts.rebalance(act, spec))
            return pb.RebalanceResponse(answer=encode_answer(view))

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """End a plan after its running wave."""
        async with Answering(context):
            require(request, "act")
            act, plan_id = signed_act(request.act), decode_plan_id(request.plan_id)
            view = await to_the_end(self._acts.abort(act, plan_id))
            return pb.AbortResponse(run=encode_run(view))

    async def Rollback(self, request: pb.RollbackRequest, context: Context) -> pb.RollbackResponse:
        """Go back to an earlier placement."""
        async with Answering(context):
            require(request, "act")
            act, epoch = signed_act(request.act), natural(request.epoch, "epoch")
            to = epoch if request.HasField("epoch") else None
            view = await to_the_end(self._acts.rollback(act, to))
            return pb.RollbackResponse(answer=encode_answer(view))

    async def Freeze(self, request: pb.FreezeRequest, context: Context) -> pb.FreezeResponse:
        """Allow no automatic plan for a time."""
        async with Answering(context):
            require(request, "act")
            act, seconds = signed_act(request.act), decode_seconds(request.seconds)
            view = await to_the_end(self._acts.freeze(act, seconds))
            return pb.FreezeResponse(status=encode_status(view))

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        """Ask all ranks to clear a halt."""
        async with Answering(context):
            require(request, "act")
            act, number = signed_act(request.act), natural(request.halt_number, "halt_number")
            view = await to_the_end(self._acts.resume(act, number))
            return pb.ResumeResponse(status=encode_status(view))

    async def SetConfig(
        self, request: pb.SetConfigRequest, context: Context
    ) -> pb.SetConfigResponse:
        """Change settings."""
        async with Answering(context):
            require(request, "act")
            act = signed_act(request.act)
            values = await to_the_end(self._acts.set_config(act, dict(request.values)))
            return pb.SetConfigResponse(values=values)

    async def Import(self, request: pb.ImportRequest, context: Context) -> pb.ImportResponse:
        """Apply a plan to the placement of a file."""
        async with Answering(context):
            require(request, "act")
            act = signed_act(request.act)
            work = self._acts.import_map(act, request.text, reshape=request.reshape)
            return pb.ImportResponse(answer=encode_answer(await to_the_end(work)))


class DrainService(admin_pb2_grpc.AdminServiceServicer):
    """Verbs that take ranks out and let them in; they run to their end likewise."""

    def __init__(self, drains: DrainDesk) -> None:
        self._drains = drains

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Empty a rank."""
        async with Answering(context):
            require(request, "act")
            act, rank = signed_act(request.act), natural(request.rank, "rank")
            view = await to_the_end(self._drains.drain(act, rank))
            return pb.DrainResponse(answer=encode_answer(view))

    async def Undrain(self, request: pb.UndrainRequest, context: Context) -> pb.UndrainResponse:
        """Let a rank be used again."""
        async with Answering(context):
            require(request, "act")
            act, rank = signed_act(request.act), natural(request.rank, "rank")
            view = await to_the_end(self._drains.undrain(act, rank))
            return pb.UndrainResponse(answer=encode_answer(view))


class AuditService(admin_pb2_grpc.AdminServiceServicer):
    """What operators did."""

    def __init__(self, book: AuditBook | None) -> None:
        self._book = book

    async def Audit(self, request: pb.AuditRequest, context: Context) -> pb.AuditResponse:
        """Entries, newest first."""
        async with Answering(context):
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
        audit: AuditBook | None = None,
    ) -> None:
        ReadService.__init__(self, operators, runs)
        ActService.__init__(self, acts)
        DrainService.__init__(self, acts)
        AuditService.__init__(self, audit)
