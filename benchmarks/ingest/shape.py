"""Deployments of Kimi K3's shape, and small ones, as their ranks would report them.

Axes    L MoE layers   E experts   P slots   S slots of one rank   N ranks   X sent entries
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eplb_service.domain.deployment import (
    Counting,
    CountMeaning,
    DeploymentIdentity,
    ModelShape,
    RankProfile,
)
from eplb_service.domain.ids import NO_DIGEST, Epoch, Generation, Incarnation, Revision
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.placement import Placement, initial_placement
from eplb_service.domain.report import (
    CountedUnder,
    LoadReport,
    Phase,
    SentCounts,
    StepCounts,
)
from eplb_service.domain.shares import Ownership, ShareName
from eplb_service.protocol.messages import Hello
from eplb_service.protocol.rank_state import initial_state, status

__all__ = [
    "K3",
    "NUM_DEPLOYMENTS",
    "NUM_RANKS",
    "SENT_EVERY",
    "SMALL",
    "STEPS_PER_REPORT",
    "Deployment",
    "Size",
]

NUM_DEPLOYMENTS = 4
NUM_RANKS = 64
STEPS_PER_REPORT = 10
SENT_EVERY = 10
"""Reports from one with sent counts to the next: 5 s at two reports a second."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a deployment is."""

    model: str
    num_ranks: int
    num_layers: int
    num_experts: int
    num_slots: int
    top_k: int

    @property
    def slots_per_rank(self) -> int:
        """Slots of every rank."""
        return self.num_slots // self.num_ranks

    @property
    def per_slot(self) -> int:
        """Tokens of a slot in one report: each rank sends one, so all sums come out even."""
        return self.num_ranks


K3 = Size("kimi-k3", NUM_RANKS, num_layers=92, num_experts=896, num_slots=1024, top_k=16)
SMALL = Size("small", 4, num_layers=12, num_experts=64, num_slots=80, top_k=4)


class Deployment:
    """One deployment, and the words of its ranks."""

    def __init__(self, number: int, size: Size = K3) -> None:
        self.size = size
        self.identity = DeploymentIdentity(
            size.model, str(number), role="serve", stage=0, group="0", weight_format="mxfp4"
        )
        self.placement: Placement = initial_placement(
            num_layers=size.num_layers,
            num_experts=size.num_experts,
            layout=SlotLayout((size.slots_per_rank,) * size.num_ranks),
        )
        self._under = CountedUnder(Epoch(0), self.placement.digest(), Revision(0))

    def hello(self, rank: int) -> Hello:
        """Return the first word of one rank."""
        incarnation = Incarnation(1)
        served = ShareName(Epoch(0), self.placement.digest(), Revision(0), NO_DIGEST)
        state = initial_state(incarnation=incarnation, ownership=Ownership.OWN, served=served)
        return Hello(
            identity=self.identity,
            shape=ModelShape(
                layers=tuple(range(1, self.size.num_layers + 1)),
                num_experts=self.size.num_experts,
                num_shared=0,
                top_k=self.size.top_k,
                bytes_per_expert=17 << 20,
            ),
            profile=_profile(rank, self.size),
            incarnation=incarnation,
            placement=self.placement,
            status=status(state, is_idle=False),
            generation_seen=Generation(0),
        )

    def report(self, number: int) -> LoadReport:
        """Return the report number 1, 2, ... of any rank; all ranks have counted the same."""
        size = self.size
        tokens = number * size.per_slot * size.slots_per_rank // size.top_k
        return LoadReport(
            under=self._under,
            phase=Phase.DECODE,
            step=number * STEPS_PER_REPORT,
            reset=0,
            is_closing=False,
            received=np.full(
                (size.num_layers, size.slots_per_rank), number * size.per_slot, dtype=np.int64
            ),
            sent_total=np.full(size.num_layers, tokens * size.top_k, dtype=np.int64),
            sent=self._sent(number),
            steps=StepCounts(
                real=number * STEPS_PER_REPORT,
                dummy=0,
                warmup=0,
                profile=0,
                tokens=tokens,
                padding_rows=0,
                overflow_tokens=0,
                step_seconds=0.5 * number,
                expert_seconds=0.1 * number,
            ),
        )

    def _sent(self, number: int) -> SentCounts:
        """Return what one rank sent to each replicated expert, in the reports that tell it."""
        if number % SENT_EVERY:
            nothing = np.zeros(0, dtype=np.int32)
            return SentCounts(nothing, nothing, np.zeros(0, dtype=np.int64))
        layers, experts, replicas = self._replicated
        tokens = replicas.astype(np.int64) * number
        return SentCounts(layers, experts, tokens)

    @cached_property
    def _replicated(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counts = self.placement.replica_count()
        layers, experts = np.nonzero(counts > 1)
        return (
            layers.astype(np.int32),
            experts.astype(np.int32),
            counts[layers, experts],
        )


def _profile(rank: int, size: Size) -> RankProfile:
    return RankProfile(
        rank=rank,
        num_ranks=size.num_ranks,
        node=f"node-{rank // 16}",
        supernode="",
        adapter="simulated",
        counting=Counting(CountMeaning.RECEIVED),
        ownership=Ownership.OWN,
        num_slots=size.slots_per_rank,
        staging_rows=16,
        sets_shares=True,
    )
