"""What a soak adds up: steps served, steps that were wrong or missed, plans, recoveries."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.system.group import TOLERANCE, Group, seconds_of
from tests.system.words import StepSeen

LATE = 10
"""A step that takes so many times the slowest of the paired ones waited for what was broken."""
NUM_TOLD = 5


@dataclass(slots=True)
class Ledger:
    """Grows by fault; `write` tells it as JSON."""

    minutes: float = 0.0
    steps: int = 0
    """Of the whole group; each is checked on every rank."""
    steps_wrong: int = 0
    steps_missed: int = 0
    plans_settled: int = 0
    plans_aborted: int = 0
    recovery_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """[faults of a name] from the end of the fault until all is calm again."""
    told: list[str] = field(default_factory=list[str])
    """What was wrong, the first few."""

    def close_group(self, group: Group) -> None:
        """Check all steps of a group that serves no more."""
        together = list(zip(*group.seen, strict=False))
        self.steps += len(together)
        for number, seen in enumerate(together):
            if not is_right(number, seen):
                self.steps_wrong += 1
                self._tell(f"step {number}: {seen}")

    def compare(
        self,
        name: str,
        during: Sequence[Sequence[StepSeen]],
        paired: Sequence[Sequence[StepSeen]],
    ) -> None:
        """Count the steps that waited while something was broken that they must not wait for."""
        broken, whole = seconds_of(during), seconds_of(paired)
        late = [one for one in broken if one > LATE * max(whole)]
        self.steps_missed += len(late)
        for one in late:
            self._tell(
                f"{name}: a step took {one:.3f} s; paired: median {median(whole):.3f} s, "
                f"slowest {max(whole):.3f} s"
            )

    def recovered(self, name: str, seconds: float, phase: str) -> None:
        """Everything was calm again; `phase` is how the plan ended that the fault fell into."""
        self.recovery_s.setdefault(name, []).append(round(seconds, 2))
        self.plan_ended(phase)

    def plan_ended(self, phase: str) -> None:
        """A plan is over."""
        if phase == "done":
            self.plans_settled += 1
        else:
            self.plans_aborted += 1

    def complaints(self, wanted: Sequence[str]) -> list[str]:
        """Say what is not as promised; empty where all is."""
        found = [
            f"{count} {what}"
            for count, what in ((self.steps_wrong, "wrong"), (self.steps_missed, "missed"))
            if count
        ]
        missing = sorted(set(wanted) - set(self.recovery_s))
        if missing:
            found.append(f"never struck: {', '.join(missing)}")
        return [*found, *self.told] if found else []

    def write(self, file: Path, *, seed: int) -> None:
        """Write the summary."""
        all_s = [one for some in self.recovery_s.values() for one in some]
        counts = Counter({name: len(some) for name, some in self.recovery_s.items()})
        summary = {
            "seed": seed,
            "minutes": round(self.minutes, 2),
            "steps": self.steps,
            "steps_wrong": self.steps_wrong,
            "steps_missed": self.steps_missed,
            "faults": counts.total(),
            "plans_settled": self.plans_settled,
            "plans_aborted": self.plans_aborted,
            "recovery_s_max": max(all_s, default=0.0),
            "by_fault": {
                name: {"times": len(some), "recovery_s_max": max(some)}
                for name, some in sorted(self.recovery_s.items())
            },
            "told": self.told,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(summary, indent=2) + "\n")

    def _tell(self, text: str) -> None:
        if len(self.told) < NUM_TOLD:
            self.told.append(text)


def is_right(number: int, seen: Sequence[StepSeen]) -> bool:
    """Whether a step is served by all ranks, at one epoch, with the outputs of the reference."""
    return (
        all(one.step == number and one.error <= TOLERANCE and not one.is_halted for one in seen)
        and len({one.epoch for one in seen}) == 1
    )
