"""Deployments of Kimi K3's shape as their ranks would report them.

Axes    L MoE layers   E experts   P slots   S slots of one rank   N ranks   X sent entries
"""

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

__all__ = ["NUM_DEPLOYMENTS", "NUM_RANKS", "SENT_EVERY", "STEPS_PER_REPORT", "Deployment"]

NUM_DEPLOYMENTS = 4
NUM_RANKS = 64
STEPS_PER_REPORT = 10
SENT_EVERY = 10
"""Reports from one with sent counts to the next: 5 s at two reports a second."""

_LAYERS, _EXPERTS, _SLOTS, _TOP_K = 92, 896, 1024, 16
_PER_SLOT = NUM_RANKS
"""Tokens of every slot in one report: each rank sends one, so all sums come out even."""


class Deployment:
    """One deployment, and the words of its ranks."""

    def __init__(self, number: int) -> None:
        self.identity = DeploymentIdentity(
            "kimi-k3", str(number), role="serve", stage=0, group="0", weight_format="mxfp4"
        )
        self.placement: Placement = initial_placement(
            num_layers=_LAYERS,
            num_experts=_EXPERTS,
            layout=SlotLayout((_SLOTS // NUM_RANKS,) * NUM_RANKS),
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
                layers=tuple(range(1, _LAYERS + 1)),
                num_experts=_EXPERTS,
                num_shared=0,
                top_k=_TOP_K,
                bytes_per_expert=17 << 20,
            ),
            profile=_profile(rank),
            incarnation=incarnation,
            placement=self.placement,
            status=status(state, is_idle=False),
            generation_seen=Generation(0),
        )

    def report(self, number: int) -> LoadReport:
        """Return the report number 1, 2, ... of any rank; all ranks have counted the same."""
        slots = _SLOTS // NUM_RANKS
        tokens = number * _PER_SLOT * slots // _TOP_K
        return LoadReport(
            under=self._under,
            phase=Phase.DECODE,
            step=number * STEPS_PER_REPORT,
            reset=0,
            is_closing=False,
            received=np.full((_LAYERS, slots), number * _PER_SLOT, dtype=np.int64),
            sent_total=np.full(_LAYERS, tokens * _TOP_K, dtype=np.int64),
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
        tokens = replicas.astype(np.int64) * number * _PER_SLOT // NUM_RANKS
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


def _profile(rank: int) -> RankProfile:
    return RankProfile(
        rank=rank,
        num_ranks=NUM_RANKS,
        node=f"node-{rank // 16}",
        supernode="",
        adapter="simulated",
        counting=Counting(CountMeaning.RECEIVED),
        ownership=Ownership.OWN,
        num_slots=_SLOTS // NUM_RANKS,
        staging_rows=16,
        sets_shares=True,
    )
