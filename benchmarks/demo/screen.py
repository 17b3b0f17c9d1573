"""What is shown while the demo runs, and at its end."""

import numpy as np

from benchmarks.demo import measures
from benchmarks.demo.ledger import Ledger
from benchmarks.demo.summary import Outputs, PlanLine, Summary
from benchmarks.traffic import Schedule

__all__ = ["header", "line", "plans_line", "report"]

_RECENT = 50
"""Steps whose load is shown as the present one."""


def header() -> str:
    """Return the heading of the live table."""
    return (
        f"{'step':>6} {'domain':<10} {'imbalance by layer':<20} {'epoch':>5} {'moves':>6} "
        f"{'migrating':>9} {'wrong':>5} {'late ms':>8}  plans"
    )


def line(ledger: Ledger, schedule: Schedule, plans: list[PlanLine]) -> str:
    """Return one line of the live table: how it stands now."""
    done = ledger.num_served
    if not done:
        return f"{0:>6} starting"
    recent = slice(max(0, done - _RECENT), done)
    by_layer = measures.imbalance(ledger.load_NTL[:, recent])
    wrong = measures.num_wrong(ledger.error_NT[:, :done], tolerance=1e-5)
    late_ms = 1e3 * float(ledger.late_s_NT[:, recent].max())
    return (
        f"{ledger.first_step + done:>6} {schedule.domain(ledger.first_step + done - 1):<10} "
        f"{' '.join(f'{value:.2f}' for value in by_layer):<20} "
        f"{int(ledger.epoch_NT[:, done - 1].max()):>5} {int(ledger.installed_NT.sum()):>6} "
        f"{int(ledger.is_migrating_NT[:, recent].max(axis=0).sum()):>9} {wrong:>5} "
        f"{late_ms:>8.1f}  {plans_line(plans)}"
    )


def plans_line(plans: list[PlanLine]) -> str:
    """Return the newest plans in a few words."""
    told = [f"{plan.plan_id} {plan.verdict} {plan.phase}" for plan in plans[-2:]]
    return ", ".join(told) or "-"


def report(summary: Summary) -> str:
    """Return the summary as a table."""
    balance, moved = summary.balance, summary.migration
    before, after = float(np.mean(balance.before)), float(np.mean(balance.after))
    layers = [
        f"  layer {layer:<13} {was:>8.3f} {now:>8.3f}"
        for layer, (was, now) in enumerate(zip(balance.before, balance.after, strict=True))
    ]
    plans = [
        f"  {plan.plan_id:<10} {plan.verdict:<9} {plan.phase:<9} {plan.num_waves} waves, "
        f"{plan.moves} moves, {plan.imbalance_before:.3f} to {plan.imbalance_after:.3f}"
        for plan in summary.plans
    ]
    return "\n".join(
        [
            f"{'imbalance':<21} {'before':>8} {'after':>8}",
            *layers,
            f"  {'mean':<19} {before:>8.3f} {after:>8.3f}",
            f"  {'mean under set shares':<28} {float(np.mean(balance.after_shares)):>8.3f}",
            "",
            "plans",
            *(plans or ["  none"]),
            "",
            _served("with control plane", summary.outputs),
            _served("without", summary.paired),
            f"{moved.plans_settled} plans carried out, {moved.moves} experts moved, "
            f"{moved.bytes_moved / 1024:.0f} KiB, {moved.steps_migrating} steps served meanwhile; "
            f"{moved.maps_only_plans} revisions of shares, which move nothing",
            f"slowest step (p99)    {1e3 * moved.slowest_step_s:.1f} ms with migration, "
            f"{1e3 * moved.slowest_calm_step_s:.1f} ms without, "
            f"ratio {moved.slowest_step_ratio:.2f}",
        ]
    )


def _served(name: str, outputs: Outputs) -> str:
    return (
        f"{name:<21} {outputs.steps} steps, {outputs.steps_checked} checked, "
        f"{outputs.steps_wrong} wrong (largest error {outputs.largest_error:.1e}), "
        f"{outputs.steps_missed} missed, median {1e3 * outputs.median_step_s:.1f} ms"
    )
