"""What an operator does to one deployment of a controller that serves several."""

from uuid import uuid4

import grpc
from eplb.v1 import admin_pb2, admin_pb2_grpc

CALL_S = 600.0
"""Of a controller that waits for a processor which engines keep busy."""
CODE, BUSY = "eplb-code", "busy"
"""What the controller says beside a refusal while something else of the deployment changes."""


class DeploymentOperator:
    """Asks the controller for one deployment, as eplbctl does; use `close` at its end."""

    def __init__(self, port: int, deployment: str) -> None:
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 200)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._deployment = deployment

    def status(self) -> admin_pb2.DeploymentStatus:
        """How it stands."""
        request = admin_pb2.StatusRequest(deployment=self._deployment)
        (only,) = self._stub.Status(request, timeout=CALL_S, wait_for_ready=True).deployments
        return only

    def move(self, policy: str = "random") -> bool:
        """Move as a policy says, whatever the gates say.

        Returns whether it was taken: not while something else, such as shares, is being changed,
        nor where nothing is to be moved, as long as no load is known.
        """
        spec = admin_pb2.PlanSpec(deployment=self._deployment, policy=policy, reason="test")
        drawn = self._stub.Plan(admin_pb2.PlanRequest(spec=spec), timeout=CALL_S)
        name = self._deployment
        act = admin_pb2.Act(deployment=name, request_id=uuid4().hex, who="test", reason="test")
        if not (plan_id := drawn.answer.plan.plan.plan_id):
            return False
        try:
            self._stub.Apply(admin_pb2.ApplyRequest(act=act, plan_id=plan_id), timeout=CALL_S)
        except grpc.RpcError as refused:
            if not _is_busy(refused):
                raise
            return False
        return True

    def is_calm(self) -> bool:
        """Every rank is connected and serves the newest epoch, and nothing runs."""
        status = self.status()
        return (
            status.operation.running.phase != "running"
            and not status.operation.running.wave_phase
            and all(rank.is_connected and rank.phase == "serving" for rank in status.ranks)
            and {rank.epoch for rank in status.ranks} == {status.epoch}
        )

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def _is_busy(refused: grpc.RpcError) -> bool:
    assert isinstance(refused, grpc.Call)
    return any(
        pair.key == CODE and str(pair.value) == BUSY for pair in refused.trailing_metadata() or ()
    )
