"""Every named failure has one gRPC status, and reaches a client with it."""

import grpc
import grpc.aio
import pytest
from eplb.v1 import admin_pb2, admin_pb2_grpc

from eplb_service.domain.errors import EplbError, InvalidReport
from eplb_service.server.status import STATUS
from tests.server.conftest import Served
from tests.server.rank_client import code_of

ERRORS = sorted(STATUS, key=lambda error: error.code)


def test_every_error_has_a_status() -> None:
    assert STATUS.keys() == set(EplbError.__subclasses__())


def test_no_named_failure_looks_like_success_or_like_a_bug_of_grpc() -> None:
    taken = {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED}
    assert not taken & set(STATUS.values())


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.code)
async def test_a_failure_reaches_the_client_with_its_status(
    served: Served, kind: type[EplbError]
) -> None:
    text = "what happened; what was expected; what happens next"
    is_report = kind is InvalidReport
    served.operators.wrong = InvalidReport(text, reason="nan") if is_report else kind(text)
    stub = admin_pb2_grpc.AdminServiceStub(served.channel)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Status(admin_pb2.StatusRequest(), timeout=5)
    error = failed.value
    assert (error.code(), error.details()) == (STATUS[kind], text)
    assert code_of(error.trailing_metadata()) == kind.code
