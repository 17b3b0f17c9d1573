"""A rank and an operator of one small deployment, as a controller's callers."""

import asyncio
from types import TracebackType
from typing import Self
from uuid import uuid4

import grpc
import grpc.aio
import pytest
from eplb.v1 import admin_pb2, admin_pb2_grpc

from eplb_service.domain.errors import NotLeader, StoreConflict
from eplb_service.server.status import CODE_KEY
from tests.server.rank_client import RankClient

CALL_S = 30.0
FENCED = (StoreConflict.code, NotLeader.code)
OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 200))


class Operator:
    """Use it in an `async with`."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)
        self.ranks: list[RankClient] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for rank in self.ranks:
            rank.call.cancel()
        await self._channel.close()

    async def register_rank(self) -> RankClient:
        """Let one rank greet, so that the deployment is on record."""
        rank = RankClient(self._channel)
        await rank.greet()
        self.ranks.append(rank)
        return rank

    async def status(self) -> admin_pb2.DeploymentStatus:
        """How the one deployment stands; waits for a controller that is dying or starting."""
        async with asyncio.timeout(CALL_S):
            while True:
                try:
                    return await self._status()
                except grpc.aio.AioRpcError as dying:
                    if dying.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise

    async def _status(self) -> admin_pb2.DeploymentStatus:
        request = admin_pb2.StatusRequest()
        answer = await self._stub.Status(request, timeout=CALL_S, wait_for_ready=True)
        (only,) = answer.deployments
        return only

    async def freeze(self, seconds: float) -> None:
        """Allow no automatic plan: a write to the store."""
        act = admin_pb2.Act(request_id=uuid4().hex, who="test", reason="test")
        await self._stub.Freeze(admin_pb2.FreezeRequest(act=act, seconds=seconds), timeout=CALL_S)

    async def require_fenced(self) -> None:
        """What is asked of a fenced controller is refused, and its rank is sent elsewhere.

        The refusal is that of the store, or of a controller that found out by an earlier write.
        """
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.freeze(60.0)
        told = dict(refused.value.trailing_metadata() or ())
        assert told.get(CODE_KEY) in FENCED, refused.value
        for rank in self.ranks:
            status, _, text = await rank.end()
            assert status is grpc.StatusCode.UNAVAILABLE, text
            assert "another controller" in text
