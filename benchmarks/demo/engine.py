"""One rank's step loop: serves its steps on the schedule, and tells how it went.

Axes    L MoE layers   S local slots
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.demo.checker import Checker
from benchmarks.demo.records import Checked, Serve, StepRecord
from benchmarks.traffic import Traffic
from moe_runtime.runtime import EMPTY, Batch, MoeRuntime, StepKind

__all__ = ["Hook", "HookState", "NoAgent", "Rank", "serve"]

IntArray = npt.NDArray[np.int64]
Tell = Callable[[tuple[StepRecord, ...], tuple[Checked, ...]], None]

_TELL_EVERY = 20
"""Steps from one word to the supervisor to the next."""
_MARGIN_S = 0.004
"""Left free before a step's slot, so that looking at old steps does not delay a new one."""


@dataclass(frozen=True, slots=True)
class HookState:
    """What the agent says of itself between two steps."""

    epoch: int
    revision: int
    is_migrating: bool


class Hook(Protocol):
    """The agent as the step loop sees it: no call waits for anything but the other ranks."""

    def before_step(self) -> None:
        """Agree with the other ranks where it is time to, and cut over if all are armed."""
        ...

    def after_step(self, kind: StepKind) -> None:
        """Take note of the time that the step took."""
        ...

    def state(self) -> HookState:
        """Return what is served and whether an order is held."""
        ...

    def close(self) -> None:
        """End the agent; no step may follow."""
        ...


class NoAgent:
    """Serving without a control plane."""

    def before_step(self) -> None:
        """Do nothing."""

    def after_step(self, kind: StepKind) -> None:
        """Do nothing."""

    def state(self) -> HookState:
        """Return the placement that was loaded."""
        return HookState(epoch=0, revision=0, is_migrating=False)

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Rank:
    """Everything that one rank serves with."""

    number: int
    runtime: MoeRuntime
    hook: Hook
    checker: Checker
    tell: Tell


def serve(command: Serve, rank: Rank, traffic: Traffic, starts_at_s: float) -> None:
    """Serve every step of a segment at its slot; return when each of them has been checked."""
    interval_s = command.schedule.interval_s
    records: list[StepRecord] = []
    batch = traffic.batch(command.first_step, rank.number)
    for number in range(command.num_steps):
        step = command.first_step + number
        slot_s = starts_at_s + number * interval_s
        _sleep_until(slot_s)
        records.append(_step(rank, step, batch, slot_s))
        if number + 1 < command.num_steps:
            batch = traffic.batch(step + 1, rank.number)
        checks = rank.checker.check_until(slot_s + interval_s - _MARGIN_S)
        rank.tell(_due(records), tuple(checks))
    rank.tell(tuple(records), ())
    for check in rank.checker.check_rest():
        rank.tell((), (check,))  # many may be left, and silence is taken for trouble


def _step(rank: Rank, step: int, batch: Batch, slot_s: float) -> StepRecord:
    held_LS, received_L = rank.runtime.held(), _received(rank.runtime)
    started = time.monotonic()
    rank.hook.before_step()
    state = rank.hook.state()
    y_TD = rank.runtime.forward(batch.at(rank.runtime.device.home)).cpu()
    rank.hook.after_step(batch.step.kind)
    seconds = time.monotonic() - started
    rank.checker.served(step, batch, y_TD)
    return StepRecord(
        step=step,
        late_s=started - slot_s,
        seconds=seconds,
        epoch=state.epoch,
        revision=state.revision,
        is_migrating=state.is_migrating,
        load=tuple((_received(rank.runtime) - received_L).tolist()),
        num_installed=_num_installed(held_LS, rank.runtime.held()),
    )


def _due(records: list[StepRecord]) -> tuple[StepRecord, ...]:
    """Take the records if enough of them have come together."""
    if len(records) < _TELL_EVERY:
        return ()
    due = tuple(records)
    records.clear()
    return due


def _received(runtime: MoeRuntime) -> IntArray:
    """Return [L]: rows that this rank's slots computed so far."""
    return runtime.counters().received_HLS.sum(axis=(0, 2))


def _num_installed(before_LS: IntArray, after_LS: IntArray) -> int:
    return int(((before_LS != after_LS) & (after_LS != EMPTY)).sum())


def _sleep_until(deadline_s: float) -> None:
    """Wait for a step's slot: the schedule is the one thing here that goes by the clock."""
    remaining_s = deadline_s - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)
