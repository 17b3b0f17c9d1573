"""One rank of a small deployment in a real process: runtime, agent, script."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch

from eplb_service.domain.layout import SlotLayout as DomainLayout
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, even_shares
from eplb_service.protocol.messages import Word
from moe_runtime.runtime import (
    Batch,
    ByGate,
    DenseReference,
    ExchangeMode,
    GroupPeers,
    MoeRuntime,
    Phase,
    Scoring,
    SelectorSettings,
    SlotLayout,
    StackShape,
    Start,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
    digest,
    logical_weights,
)
from tests.agent.scripts import Script
from worker_agent.adapters.mover import TorchMover
from worker_agent.agent.hook import StepHook
from worker_agent.main import attach_over
from worker_agent.settings.settings import AgentSettings, PaceSettings

WIDTH = 8
SEED = 5
MAX_STEPS = 4000
TOLERANCE = 1e-9
"""Relative, in float64; a token computed by a wrong expert is off by more than 1."""


@dataclass(frozen=True, slots=True)
class Case:
    """(ranks, layers, slots per rank, experts) of the issue's grid."""

    ranks: int
    layers: int
    slots: int
    experts: int

    @property
    def layout(self) -> DomainLayout:
        return DomainLayout((self.slots,) * self.ranks)

    def shape(self) -> StackShape:
        return StackShape(
            num_layers=self.layers,
            width=WIDTH,
            intermediate=6,
            selector=SelectorSettings(
                num_experts=self.experts, top_k=min(2, self.experts), scoring=Scoring.SIGMOID
            ),
            activation=SwiGLU(),
        )


def random_placement(case: Case, draw: np.random.Generator) -> Placement:
    """A sound placement: every expert somewhere, no expert twice on a rank, some slots empty."""
    rows = [_random_row(case, draw) for _ in range(case.layers)]
    return Placement(np.array(rows, dtype=np.int32), case.experts, case.layout)


def _random_row(case: Case, draw: np.random.Generator) -> list[int]:
    ranks: list[list[int]] = [[] for _ in range(case.ranks)]
    for expert in draw.permutation(case.experts).tolist():
        free = [rank for rank in ranks if len(rank) < case.slots]
        free[int(draw.integers(len(free)))].append(expert)
    for rank in ranks:
        others = draw.permutation([e for e in range(case.experts) if e not in rank]).tolist()
        while len(rank) < case.slots and others and draw.random() < 0.8:
            rank.append(int(others.pop()))
    return [
        int(expert)
        for rank in ranks
        for expert in draw.permutation([*rank, *[-1] * (case.slots - len(rank))])
    ]


class Serving:
    """Steps of one rank, each output held against the dense reference."""

    def __init__(self, case: Case, rank: int, runtime: MoeRuntime, hook: StepHook) -> None:
        self.case = case
        self.rank = rank
        self.runtime = runtime
        self.hook = hook
        self._reference = DenseReference(runtime.model)
        self.num_steps = 0

    def step(self) -> None:
        """One forward: three tokens, or on one step of four a dummy."""
        self.hook.before_step()
        is_dummy = (self.num_steps + self.rank) % 4 == 0
        if is_dummy:
            self.runtime.forward(Batch.dummy(WIDTH, dtype=torch.float64))
        else:
            draw = torch.Generator().manual_seed(1000 * self.num_steps + self.rank)
            tokens = torch.randn((3, WIDTH), generator=draw, dtype=torch.float64)
            real = Step(StepKind.REAL, Phase.DECODE)
            given = self.runtime.forward(Batch.of(tokens, ByGate(), real))
            wanted = self._reference.forward(tokens, ByGate())
            error = float((given - wanted).abs().max() / wanted.abs().max())
            assert error < TOLERANCE, f"step {self.num_steps}: relative error {error}"
        self.hook.after_step()
        self.num_steps += 1

    def step_until_epoch(self, epoch: int) -> None:
        """Take steps until the epoch is served: at the same step on all ranks."""
        while self.hook.state().epoch != epoch:
            assert self.num_steps < MAX_STEPS, f"rank {self.rank}: epoch {epoch} is not served"
            self.step()

    def contents(self) -> list[list[bytes]]:
        """Digest of every slot's tensors, [L][S]."""
        return [
            [digest(self.runtime.slots.expert_tensors(layer, slot)) for slot in self._slots()]
            for layer in range(self.case.layers)
        ]

    def layer_bytes(self, layer: int) -> bytes:
        """Fingerprint of all bytes of a layer's slots, empty ones too."""
        state = blake2b()
        for slot in self._slots():
            for name, tensor in sorted(self.runtime.slots.expert_tensors(layer, slot).items()):
                state.update(name.encode())
                state.update(tensor.contiguous().numpy().tobytes())
        return state.digest()

    def require_content(self, placement: Placement) -> None:
        """Every tensor of every filled slot is the logical expert's, byte for byte."""
        own = placement.phy2log[:, placement.layout.slots_of(self.rank)]
        found = self.contents()
        for layer, slot in np.argwhere(own >= 0).tolist():
            expert = int(own[layer, slot])
            assert found[layer][slot] == expert_digest(self.case, layer, expert), (
                f"rank {self.rank} layer {layer} slot {slot} does not hold expert {expert}"
            )
        assert self.runtime.held().tolist() == own.tolist()

    def _slots(self) -> range:
        return range(self.case.slots)


def expert_digest(case: Case, layer: int, expert: int) -> bytes:
    """Digest of one logical expert, from its own source."""
    weights = logical_weights(
        case.shape(), seed=SEED, layer=layer, expert=expert, dtype=torch.float64
    )
    return digest({name: stack[0] for name, stack in weights.named().items()})


@contextmanager
def served(
    case: Case,
    rank: int,
    placement: Placement,
    script: Script,
    *,
    staging_rows: int = 4,
    mover: type[TorchMover] = TorchMover,
    mode: ExchangeMode = ExchangeMode.ALL_GATHER,
    on_corruption: Literal["fail", "serve"] = "fail",
) -> Generator[Serving]:
    """Serve `placement` on this rank of the default group, with an agent beside it."""
    start = Start(
        SlotLayout(placement.layout.slots_per_rank),
        placement.phy2log[:, placement.layout.slots_of(rank)],
        even_shares(placement, Ownership.OWN).table_of(rank),
        staging_rows,
    )
    runtime = MoeRuntime(
        SyntheticModel(case.shape(), seed=SEED),
        start,
        peers=GroupPeers(),
        mode=mode,
        dtype=torch.float64,
    )
    settings = AgentSettings(
        endpoint="script",
        agree_every=2,
        on_corruption=on_corruption,
        wait_for_welcome_s=10,
        group_timeout_s=30,
        pace=PaceSettings(poll_s=0.01),
    )
    hook = attach_over(runtime, script, settings=settings, mover=mover)
    try:
        yield Serving(case, rank, runtime, hook)
    finally:
        hook.close()


def kinds(words: list[Word]) -> list[str]:
    """Names of the words that were said, in order."""
    return [type(word).__name__ for word in words]
