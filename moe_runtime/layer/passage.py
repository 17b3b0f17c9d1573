"""From placed tokens to combined ones: an exchange around the experts.

Axes    T tokens   Z width of the routed part
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from moe_runtime.contracts.stages import AllToAllCarry, Computed, Dispatched, Placed
from moe_runtime.contracts.step import StepView
from moe_runtime.contracts.weights import ExpertWeights
from moe_runtime.exchange.fused_mc2 import FusedMc2Exchange, Overflow
from moe_runtime.exchange.protocol import Exchange
from moe_runtime.experts.activations import Activation

__all__ = ["Compute", "FusedOrElse", "Lending", "Lent", "Passage", "Passed", "Staged"]

C = TypeVar("C")


class Compute(Protocol):
    """The experts of one rank; called once, or once for each wave of slots."""

    def __call__(self, dispatched: Dispatched[C], /) -> Computed[C]:
        """Run every row through the expert of its slot."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    """The experts of one layer and rank, for an operator that computes all rows by itself."""

    weights: ExpertWeights
    activation: Activation


@runtime_checkable
class Lending(Protocol):
    """Experts that can be lent; those of a layer can."""

    def lend(self, received_NS: Tensor, claimed_NS: Tensor) -> Lent:
        """Give them, once it is checked that each slot holds whom its rows are for."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """What has come out."""

    x_TZ: Tensor
    overflow_rows: int
    """Rows for which the chosen way had no place at this rank, so that another was taken."""


class Passage(Protocol):
    """One way from placed tokens to combined ones; it keeps nothing between calls."""

    def run(self, placed: Placed, view: StepView, compute: Compute) -> Passed:
        """Compute all tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Staged(Generic[C]):
    """Dispatch, experts and combine, one after the other."""

    exchange: Exchange[C]

    def run(self, placed: Placed, view: StepView, compute: Compute) -> Passed:
        """Compute all tokens."""
        computed = compute(self.exchange.dispatch(placed, view))
        return Passed(self.exchange.combine(computed).x_TZ, 0)


@dataclass(frozen=True, slots=True)
class FusedOrElse:
    """All in one call; where the step does not fit, the other way, on all ranks alike."""

    fused: FusedMc2Exchange
    otherwise: Staged[AllToAllCarry]

    def run(self, placed: Placed, view: StepView, compute: Compute) -> Passed:
        """Compute all tokens."""
        done = self.fused.run(placed, view, compute)
        if isinstance(done, Overflow):
            passed = self.otherwise.run(placed, view, compute)
            return Passed(passed.x_TZ, done.rows_at(view.rank))
        return Passed(done.x_TZ, 0)
