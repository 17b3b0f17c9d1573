"""What the demo found, for people and for machines.

Axes    N ranks   T steps   L MoE layers
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.demo import measures
from benchmarks.demo.checker import TOLERANCE
from benchmarks.demo.ledger import Ledger

__all__ = ["Balance", "Migration", "Outputs", "PlanLine", "Summary", "complaints", "summarise"]

LAST = 200
"""Steps at the end over which load is compared."""


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One plan as the controller tells it."""

    plan_id: str
    verdict: str
    phase: str
    num_waves: int
    moves: int
    imbalance_before: float
    imbalance_after: float
    """As the plan promised."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Imbalance by layer of the same tokens, on the flat placement and on the last one served."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    after_shares: tuple[float, ...]
    """Of those steps that were served by shares that were set; NaN where none was."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Whether serving was right and never waited."""

    steps: int
    steps_checked: int
    steps_wrong: int
    steps_late: int
    """Steps that began more than five median steps after their slot."""
    steps_missed: int
    """Late steps, less those of the paired run over the steps that both served."""
    largest_error: float
    median_step_s: float


@dataclass(frozen=True, slots=True)
class Migration:
    """What moved, and what that cost."""

    plans_settled: int
    moves: int
    moves_weights: int
    """Experts whose weights went into a slot, over all plans; the same as moves."""
    maps_only_plans: int
    """Revisions of shares that came into use on all ranks; they move nothing."""
    bytes_moved: int
    steps_migrating: int
    """Steps served while an order was held."""
    slowest_step_s: float
    """The 99th percentile in blocks of steps with migration."""
    slowest_calm_step_s: float
    """The same in blocks without."""
    slowest_step_ratio: float


@dataclass(frozen=True, slots=True)
class Summary:
    """All of it."""

    balance: Balance
    outputs: Outputs
    paired: Outputs
    """The run without a control plane; its steps_missed are counted whole."""
    migration: Migration
    plans: tuple[PlanLine, ...]

    def write(self, path: Path) -> None:
        """Write JSON with the figures side by side, and a null for each that was not measured."""
        flat: dict[str, Json] = {
            "imbalance_before": float(np.mean(self.balance.before)),
            "imbalance_after": float(np.mean(self.balance.after)),
            "imbalance_after_shares": float(np.mean(self.balance.after_shares)),
            "imbalance_before_by_layer": self.balance.before,
            "imbalance_after_by_layer": self.balance.after,
            "imbalance_after_shares_by_layer": self.balance.after_shares,
            **asdict(self.outputs),
            **asdict(self.migration),
            "paired": asdict(self.paired),
            "plans": [asdict(plan) for plan in self.plans],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_without_nan(flat), indent=2, allow_nan=False) + "\n")


Json: TypeAlias = "float | int | str | Sequence[Json] | dict[str, Json] | None"


def _without_nan(value: Json) -> Json:
    match value:
        case float():
            return value if np.isfinite(value) else None
        case dict():
            return {key: _without_nan(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_without_nan(inner) for inner in value]
        case _:
            return value


def summarise(
    *,
    run: Ledger,
    paired: Ledger,
    plans: Sequence[PlanLine],
    bytes_per_expert: int,
) -> Summary:
    """Draw every figure from what the ranks measured; the paired run served the last steps."""
    moves = int(run.installed_NT.sum())
    seconds_T = measures.step_seconds(run.seconds_NT)
    migrating_T = run.is_migrating_NT.max(axis=0)
    slow, calm = measures.slowest_steps(seconds_T, migrating_T)
    shared_T = measures.shared_steps(run.epoch_NT, run.revision_NT)[-LAST:]
    alone = _outputs(paired, late_alone=0, num_shared=0)
    return Summary(
        balance=Balance(
            before=tuple(measures.imbalance(paired.load_NTL[:, -LAST:]).tolist()),
            after=tuple(measures.imbalance(run.load_NTL[:, -LAST:]).tolist()),
            after_shares=tuple(measures.imbalance(run.load_NTL[:, -LAST:][:, shared_T]).tolist()),
        ),
        outputs=_outputs(run, late_alone=alone.steps_late, num_shared=paired.num_served),
        paired=alone,
        migration=Migration(
            plans_settled=sum(plan.phase == "done" for plan in plans),
            moves=moves,
            moves_weights=moves,
            maps_only_plans=measures.num_revisions(run.epoch_NT, run.revision_NT),
            bytes_moved=moves * bytes_per_expert,
            steps_migrating=int(migrating_T.sum()),
            slowest_step_s=slow,
            slowest_calm_step_s=calm,
            slowest_step_ratio=slow / calm,
        ),
        plans=tuple(plans),
    )


def _outputs(ledger: Ledger, *, late_alone: int, num_shared: int) -> Outputs:
    median_s = float(np.median(measures.step_seconds(ledger.seconds_NT)))
    late_T = measures.is_late(ledger.late_s_NT, median_step_s=median_s)
    return Outputs(
        steps=ledger.num_served,
        steps_checked=measures.num_checked(ledger.error_NT),
        steps_wrong=measures.num_wrong(ledger.error_NT, tolerance=TOLERANCE),
        steps_late=int(late_T.sum()),
        steps_missed=measures.missed_steps(late_T, late_alone=late_alone, num_shared=num_shared),
        largest_error=float(ledger.error_NT.max()),
        median_step_s=median_s,
    )


def complaints(summary: Summary) -> list[str]:
    """Say what did not go as it must; nothing, if all is well."""
    found: list[str] = []
    for name, outputs in (("run", summary.outputs), ("paired run", summary.paired)):
        if outputs.steps_wrong:
            found.append(f"{outputs.steps_wrong} steps of the {name} had wrong outputs")
        if outputs.steps_checked != outputs.steps:
            found.append(
                f"{outputs.steps_checked} of {outputs.steps} steps of the {name} were checked"
            )
    if not summary.migration.plans_settled:
        found.append("no plan was carried out")
    if not summary.migration.maps_only_plans:
        found.append("no shares were set")
    return found
