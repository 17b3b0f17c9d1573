"""The plans of the running controller, read as any operator could."""

from types import TracebackType
from typing import Self

import grpc
import numpy as np
from eplb.v1 import admin_pb2, admin_pb2_grpc, types_pb2

from benchmarks.demo.summary import PlanLine

__all__ = ["PlanReader"]

_TIMEOUT_S = 2.0
_MOST_LINES = 1000
_ANSWERS = {
    admin_pb2.ANSWER_YES: "yes",
    admin_pb2.ANSWER_THROTTLE: "throttle",
    admin_pb2.ANSWER_NO: "no",
}


class PlanReader:
    """Reads plans; when the controller does not answer, what was known is shown again."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.enable_http_proxy", 0)])
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._known: dict[str, PlanLine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def plans(self) -> list[PlanLine]:
        """Return every plan that the history tells of, oldest first."""
        try:
            self._read()
        except grpc.RpcError as silent:
            print(f"the controller does not answer ({_words(silent)}); ranks serve on", flush=True)
        return list(self._known.values())

    def _read(self) -> None:
        history = self._admin.History(
            admin_pb2.HistoryRequest(limit=_MOST_LINES), timeout=_TIMEOUT_S
        )
        for entry in reversed(history.entries):
            if entry.plan_id and not self._is_over(entry.plan_id):
                explained = self._admin.Explain(
                    admin_pb2.ExplainRequest(plan_id=entry.plan_id), timeout=_TIMEOUT_S
                )
                self._known[entry.plan_id] = _line(explained.plan)

    def _is_over(self, plan_id: str) -> bool:
        return plan_id in self._known and self._known[plan_id].phase in {"done", "rejected"}


def _words(error: grpc.RpcError) -> str:
    return error.code().name.lower() if isinstance(error, grpc.Call) else str(error)


def _line(view: admin_pb2.PlanView) -> PlanLine:
    price = view.plan.price
    return PlanLine(
        plan_id=view.plan.plan_id,
        verdict=_ANSWERS[view.verdict.answer],
        phase=view.phase,
        num_waves=len(view.plan.waves),
        moves=price.num_moves,
        imbalance_before=_mean(price.imbalance_before),
        imbalance_after=_mean(price.imbalance_after),
    )


def _mean(by_layer: types_pb2.Matrix) -> float:
    """Return the mean over layers with data."""
    values = np.frombuffer(by_layer.data, dtype="<f8")
    return float(values[np.isfinite(values)].mean()) if np.isfinite(values).any() else float("nan")
