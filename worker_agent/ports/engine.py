"""The engine beside which the agent runs, as the step side sees it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from eplb_service.domain.ids import CountArray, IntArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.wave import Order


class StepKind(StrEnum):
    """Why a step runs; only real steps are load."""

    REAL = "real"
    DUMMY = "dummy"
    WARMUP = "warmup"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Steps this rank took since its counters began, by kind."""

    real: int
    dummy: int
    warmup: int
    profile: int

    def since(self, start: "StepTotals") -> "StepTotals":
        """Return the steps taken after `start`."""
        return StepTotals(
            real=self.real - start.real,
            dummy=self.dummy - start.dummy,
            warmup=self.warmup - start.warmup,
            profile=self.profile - start.profile,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """All of an engine's load totals at one moment; they only grow.

    A switch does not reset them: what a slot counted before belongs to the epoch before.
    """

    received: CountArray
    """[H, L, S] tokens that each local slot computed."""
    sent: CountArray
    """[H, L, E] token copies that this rank's own tokens sent to each expert."""
    tokens: CountArray
    """[H] this rank's own tokens in real steps."""
    steps: StepTotals
    padding_rows: int
    overflow_tokens: int
    expert_seconds: float

    def since(self, start: "Counters") -> "Counters":
        """Return what was counted after `start`."""
        return Counters(
            received=self.received - start.received,
            sent=self.sent - start.sent,
            tokens=self.tokens - start.tokens,
            steps=self.steps.since(start.steps),
            padding_rows=self.padding_rows - start.padding_rows,
            overflow_tokens=self.overflow_tokens - start.overflow_tokens,
            expert_seconds=self.expert_seconds - start.expert_seconds,
        )


class EnginePort(Protocol):
    """What an engine lets the agent do; every call is made on the step's thread."""

    def load(self, placement: Placement, table: IntArray) -> None:
        """Put a placement in use before the first step, from the engine's own source of weights.

        table    [L, E, J] this rank's dispatch table
        """
        ...

    def switch(self, order: Order) -> None:
        """Install the order's staged experts and set its tables, for all its layers.

        The k-th expert that the order has this rank receive is in staging row k.
        """
        ...

    def apply_table(self, table: IntArray) -> None:
        """Put a dispatch table in use: [L, E, J]."""
        ...

    def restore(self, layer: int, local_slot: int, row: int) -> None:
        """Copy what is staged in a row to a slot that holds, by name, the same expert."""
        ...

    def counters(self) -> Counters:
        """Copy all load totals."""
        ...
