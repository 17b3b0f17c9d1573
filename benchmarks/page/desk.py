"""A desk whose one deployment has the size of Kimi K3 on 64 ranks and another heat at every look.

Axes    L MoE layers   E logical experts   N ranks
"""

from itertools import count

import numpy as np

from eplb_service.controller.page_desk import Look, PlacedHeat, PlanMap
from eplb_service.controller.views import (
    HeatView,
    HistoryView,
    ImbalanceView,
    OperationView,
    PlanningView,
    RankView,
    StatusView,
    WindowView,
)
from eplb_service.domain.errors import UnknownPlan
from eplb_service.domain.heat import imbalance, mean_with_data
from eplb_service.domain.ids import FloatArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import initial_placement
from eplb_service.protocol.messages import HaltStatus

__all__ = ["NUM_EXPERTS", "NUM_LAYERS", "RestlessDesk"]

NAME = "kimi-k3/0/serve/0/0"
NUM_LAYERS, NUM_EXPERTS, NUM_RANKS = 92, 896, 64
SLOTS_PER_RANK = 16


class RestlessDesk:
    """A controller.page_desk.PageDesk: heat is drawn anew for every look."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._looks = count(1)
        layout = SlotLayout((SLOTS_PER_RANK,) * NUM_RANKS)
        self._placement = initial_placement(
            num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, layout=layout
        )
        self._tokens = np.zeros((NUM_LAYERS, NUM_EXPERTS))

    async def looks(self) -> tuple[Look, ...]:
        """The deployment, with a key that says that its heat is another."""
        key = str(next(self._looks))
        self._tokens = 1000.0 * self._rng.lognormal(0.0, 1.0, (NUM_LAYERS, NUM_EXPERTS))
        return (Look(_status(imbalance(self._load())), key, ()),)

    async def heat(self, deployment: str) -> PlacedHeat:
        """What the newest look told of."""
        load = self._load()
        numbers = tuple(range(NUM_LAYERS))
        view = HeatView(deployment, numbers, numbers, self._tokens, load, imbalance(load), 300, 1.0)
        return PlacedHeat(view, self._placement)

    async def plan(self, deployment: str, plan_id: str) -> PlanMap:
        """There is none."""
        raise UnknownPlan(f"no plan {plan_id} is kept of {deployment}")

    async def history(self, deployment: str) -> HistoryView:
        """Nothing happened."""
        return HistoryView(deployment, ())

    def _load(self) -> FloatArray:
        """[L, N] tokens of each rank, an expert's shared evenly by its replicas."""
        placement = self._placement
        share = self._tokens / placement.replica_count()
        by_slot = np.take_along_axis(share, placement.phy2log.astype(np.int64), axis=1)
        return by_slot.reshape(NUM_LAYERS, NUM_RANKS, SLOTS_PER_RANK).sum(axis=2)


def _status(layers: FloatArray) -> StatusView:
    worst = int(np.argmax(layers))
    halt = HaltStatus(0, is_active=False, reason="")
    return StatusView(
        deployment=NAME,
        epoch=1,
        revision=0,
        generation=1,
        settled_age_s=60.0,
        ranks=tuple(_rank(rank) for rank in range(NUM_RANKS)),
        window=WindowView(300, 1.0, 0.1, 0),
        imbalance=ImbalanceView(mean_with_data(layers), float(layers[worst]), worst),
        operation=OperationView(
            is_idle=False,
            halt=halt,
            freeze=None,
            running=None,
            planning=PlanningView(num_skipped=0, num_failed=0, last_skip="", last_error=""),
        ),
    )


def _rank(rank: int) -> RankView:
    return RankView(
        rank=rank,
        node=f"node{rank // 8}",
        is_connected=True,
        epoch=1,
        phase="serving",
        report_age_s=0.1,
        step=300,
    )
