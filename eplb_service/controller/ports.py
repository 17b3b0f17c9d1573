"""What the controller needs from the floors above it."""

from collections.abc import Sequence
from typing import Protocol

from eplb_service.controller.planning import NothingToDo, PlanningInput
from eplb_service.controller.records import (
    DeploymentRecord,
    EpochEnd,
    EpochRecord,
    HistoryEntry,
    Note,
    Pulse,
    Recovered,
)
from eplb_service.controller.sharing import Proposal, ShareTask
from eplb_service.domain.ids import Epoch, FloatArray, Generation, Revision
from eplb_service.domain.metric_names import Metric
from eplb_service.domain.plan import Plan
from eplb_service.protocol.messages import Down


class Beats(Protocol):
    """Signs of life of the leader, beside the fence; raise as Store's methods do."""

    async def give(self, generation: Generation) -> None:
        """Let those that stand by see that this generation still leads."""
        ...

    async def pulse(self) -> Pulse:
        """Who led last, and how often it has said so."""
        ...


class Store(Protocol):
    """Durable memory, fenced by generation.

    Every write carries the writer's generation and raises StoreConflict when a
    higher one has been acquired; a write that returns is durable. Raises
    StoreUnavailable, with nothing written, when the store does not answer in time.
    """

    @property
    def beats(self) -> Beats:
        """The leader's signs of life."""
        ...

    async def acquire(self, after: Generation | None = None) -> Generation:
        """Take the next generation and fence every lower one.

        after    only while this is the newest; StoreConflict where another was faster
        """
        ...

    async def deployments(self) -> tuple[str, ...]:
        """Names of all deployments on record."""
        ...

    async def recover(self, deployment: str) -> Recovered | None:
        """Everything known of one deployment; None where nothing is."""
        ...

    async def register(
        self, generation: Generation, record: DeploymentRecord, first: EpochRecord
    ) -> None:
        """Write a deployment down, or its newer incarnation; `first` is its settled start."""
        ...

    async def spend(self, generation: Generation, deployment: str, record: EpochRecord) -> None:
        """Spend the epoch's number; StoreConflict if it is not above all spent ones.

        The same wave again is done already: its first answer was lost.
        """
        ...

    async def end(self, generation: Generation, deployment: str, end: EpochEnd) -> None:
        """Record how far an epoch came."""
        ...

    async def spend_revision(
        self, generation: Generation, deployment: str, epoch: Epoch, revision: Revision
    ) -> None:
        """Spend a share revision's number."""
        ...

    async def keep(self, generation: Generation, deployment: str, note: Note) -> None:
        """Write an operator's act: a freeze, settings, drained ranks or a line of history."""
        ...


class Archive(Protocol):
    """The store's read side for people; never on a migration's path."""

    async def history(self, deployment: str, limit: int) -> tuple[HistoryEntry, ...]:
        """Newest first."""
        ...

    async def epoch(self, deployment: str, epoch: Epoch) -> tuple[EpochRecord, EpochEnd] | None:
        """One spent number and how it ended."""
        ...

    async def settled_before(self, deployment: str, epoch: Epoch) -> EpochRecord | None:
        """The newest settled epoch below the given one."""
        ...


class Outbox(Protocol):
    """The way down to one connected rank; never blocks."""

    def send(self, message: Down) -> None:
        """Queue a message; an outbox that is full closes its stream, and the rank comes again."""
        ...

    def close(self, reason: str) -> None:
        """End the stream; the rank will connect again."""
        ...


class PlanRunner(Protocol):
    """Where plans and shares are drawn: in other processes, killed at their deadline."""

    async def draw(self, task: PlanningInput, *, deadline_s: float) -> Plan | NothingToDo:
        """Run planning.draft; raises PlannerFailed or PlannerTimeout."""
        ...

    async def share(self, task: ShareTask, *, deadline_s: float) -> Proposal | None:
        """Run sharing.propose; raises as `draw` does, and InvalidTable."""
        ...

    def close(self) -> None:
        """End what draws; called once, at the end."""
        ...


class Recorder(Protocol):
    """Where figures for operators go."""

    def set(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Set a gauge."""
        ...

    def add(self, metric: Metric, labels: Sequence[str], amount: float) -> None:
        """Add to a counter."""
        ...

    def observe(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Count one value of a histogram."""
        ...

    def forget(self, metric: Metric, labels: Sequence[str]) -> None:
        """Drop one series, e.g. of a layer without load."""
        ...

    def keep_heat(self, deployment: str, tokens: FloatArray, load: FloatArray) -> None:
        """Keep the newest heat [L, E] and load [L, N] for whoever asks; neither is written to."""
        ...
