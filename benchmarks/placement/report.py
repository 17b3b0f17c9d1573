"""The rows for machines, and a table of their means for people."""

import json
from collections.abc import Sequence
from math import isnan
from pathlib import Path

from benchmarks.placement.runs import Value
from eplb_service.policies.redundancy import Redundancy

__all__ = ["redundancy_table", "table", "write"]

Record = dict[str, Value]

COLUMNS = (
    ("even", "imbalance_even", ".4f"),
    ("shares", "imbalance_shares", ".4f"),
    ("maps", "imbalance_maps", ".4f"),
    ("next even", "next_even", ".4f"),
    ("stale", "next_shares_stale", ".4f"),
    ("fresh", "next_shares_fresh", ".4f"),
    ("maps fresh", "next_maps_fresh", ".4f"),
    ("moves", "moves", ",.0f"),
    ("inter-node", "inter_node_moves", ",.0f"),
    ("incoming", "max_incoming", ".2f"),
    ("components", "components", ".1f"),
    ("own node", "own_node", ".3f"),
    ("ms", "ms", ",.0f"),
    ("x ref", "ms_over_reference", ".1f"),
    ("split x ref", "split_over_reference", ".2f"),
)


def table(records: Sequence[Record]) -> str:
    """Return a Markdown table: means over seeds and the windows after the first.

    `first` are the moves of window 0, which starts from the flat layout.
    """
    heads = ["shape", "scenario", "policy", *(head for head, _, _ in COLUMNS), "first", "valid"]
    lines = [heads, ["---"] * 3 + ["--:"] * (len(heads) - 3)]
    keys = dict.fromkeys((r["shape"], r["scenario"], r["policy"]) for r in records)
    for key in keys:
        own = [r for r in records if (r["shape"], r["scenario"], r["policy"]) == key]
        first = [r for r in own if r["window"] == 0]
        later = [r for r in own if r["window"] != 0]
        cells = [_mean(later or first, name, form) for _, name, form in COLUMNS]
        wrong = sum(not r["valid"] for r in own)
        validity = f"{wrong} INVALID" if wrong else "all"
        lines.append([*map(str, key), *cells, _mean(first, "moves", ",.0f"), validity])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _mean(records: Sequence[Record], name: str, form: str) -> str:
    values = [v for r in records if isinstance(v := r[name], int | float)]
    return format(sum(values) / len(values), form) if values else "-"


def redundancy_table(shape: str, scenario: str, rows: Sequence[Redundancy]) -> str:
    """Return a Markdown table of what numbers of slots come to on one load."""
    heads = ["shape", "scenario", "slots", "joins all", "components", "even", "shares", "later"]
    heads += ["worst", "later by slot"]
    lines = [heads, ["---"] * 2 + ["--:"] * (len(heads) - 2)]
    for row in rows:
        figures = (row.even, row.shares, row.later, row.worst)
        cells = [str(row.num_slots), "yes" if row.can_connect else "no", f"{row.components:.1f}"]
        cells += [f"{value:.4f}" for value in figures]
        change = "-" if isnan(row.gain_per_slot) else f"{-row.gain_per_slot:+.6f}"
        lines.append([shape, scenario, *cells, change])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(records: Sequence[Record], path: Path) -> None:
    """Write the rows as a JSON list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, indent=1, allow_nan=False) + "\n")
