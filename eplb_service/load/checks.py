"""What a report must be, to be believed: each check refuses with a reason of one word.

Axes    L MoE layers   S columns of the report   E logical experts
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eplb_service.domain.errors import InvalidReport
from eplb_service.domain.placement import EMPTY
from eplb_service.domain.report import LoadReport
from eplb_service.load.group import Group, WindowTerms


def check_origin(report: LoadReport, rank: int, group: Group) -> None:
    """Refuse a rank outside the group, and counts made under another placement."""
    if not 0 <= rank < group.num_ranks:
        raise InvalidReport(
            f"a report came from rank {rank}; expected 0 to {group.num_ranks - 1}",
            reason="unknown_rank",
        )
    if report.epoch != group.epoch:
        raise InvalidReport(
            f"rank {rank} reported under epoch {report.epoch}, but epoch {group.epoch} is served; "
            "the counts were not used",
            reason="foreign_epoch",
        )
    if report.placement != group.digest:
        raise InvalidReport(
            f"rank {rank} counted under placement {report.placement:016x}, but "
            f"{group.digest:016x} is served at epoch {group.epoch}",
            reason="foreign_placement",
        )


def check_content(report: LoadReport, rank: int, group: Group) -> None:
    """Refuse wrong shapes, values that are no counts, and a sum that is not tokens x top_k."""
    _check_shapes(report, rank, group)
    _check_counts(report.received, rank, "slot")
    _check_counts(report.sent_total, rank, "")
    _check_empty_slots(report, rank, group)
    _check_sent(report, rank, group)
    expected = report.steps.tokens * group.top_k
    wrong = np.flatnonzero(report.sent_total != expected)
    if wrong.size:
        layer = int(wrong[0])
        raise InvalidReport(
            f"rank {rank} layer {layer}: {report.sent_total[layer]} token copies sent, expected "
            f"{expected} ({report.steps.tokens} tokens x top-{group.top_k}); "
            f"{wrong.size} layers differ",
            reason="sent_total",
        )


def check_order(report: LoadReport, last: LoadReport | None, rank: int, terms: WindowTerms) -> None:
    """Refuse steps that are not cut as agreed, or come twice, and counters that run backwards."""
    if report.step % terms.report_steps and not report.is_closing:
        raise InvalidReport(
            f"rank {rank} reported at step {report.step}; expected a multiple of "
            f"{terms.report_steps}, so that the reports of all ranks enclose the same steps",
            reason="misaligned",
        )
    if last is None or report.reset > last.reset:
        return
    if report.reset < last.reset or report.step < last.step:
        raise InvalidReport(
            f"rank {rank} reported step {report.step} of reset {report.reset} after step "
            f"{last.step} of reset {last.reset}; the newer one is kept",
            reason="stale",
        )
    if report.step == last.step and not report.is_closing:
        raise InvalidReport(
            f"rank {rank} reported step {report.step} twice; the first report is kept",
            reason="duplicate",
        )
    backwards = np.argwhere(report.received < last.received)
    if backwards.size or report.steps.tokens < last.steps.tokens:
        where = f"layer {backwards[0][0]} slot {backwards[0][1]}" if backwards.size else "tokens"
        raise InvalidReport(
            f"rank {rank} {where}: the counter at step {report.step} is below that at step "
            f"{last.step} without a reset; an integer that wrapped does that",
            reason="backwards",
        )


def _check_shapes(report: LoadReport, rank: int, group: Group) -> None:
    num_layers, columns = group.placement.num_layers, group.num_columns(rank)
    if report.received.shape != (num_layers, columns):
        raise InvalidReport(
            f"rank {rank} reported counts of shape {list(report.received.shape)}; expected "
            f"[{num_layers}, {columns}] for {num_layers} layers and {columns} slots",
            reason="shape",
        )
    if report.sent_total.shape != (num_layers,):
        raise InvalidReport(
            f"rank {rank} reported sent totals of shape {list(report.sent_total.shape)}; expected "
            f"[{num_layers}]",
            reason="shape",
        )


Check = Callable[[NDArray[np.generic]], NDArray[np.bool_]]


def _check_counts(values: NDArray[np.generic], rank: int, column: str) -> None:
    """Refuse NaN, infinities, fractions and negative counts, with their place."""
    if values.dtype.kind == "f":
        bad, reason = ~np.isfinite(values.astype(np.float64)), "nan"
        if not bad.any():
            bad, reason = np.ones(values.shape, dtype=np.bool_), "dtype"
    elif values.dtype != np.int64:
        bad, reason = np.ones(values.shape, dtype=np.bool_), "dtype"
    elif not values.size or values.astype(np.int64, copy=False).min() >= 0:
        return
    else:
        bad, reason = values.astype(np.int64, copy=False) < 0, "negative"
    if not bad.any():
        return
    at = np.argwhere(bad)[0].tolist()
    place = f"layer {at[0]}" + (f" {column} {at[1]}" if column else "")
    raise InvalidReport(
        f"rank {rank} {place}: {values[tuple(at)]} as {values.dtype} is no count ({reason}); "
        "expected int64 of zero or more; the last good report is kept",
        reason=reason,
    )


def _check_empty_slots(report: LoadReport, rank: int, group: Group) -> None:
    empty = group.placement.phy2log[:, group.columns(rank)] == EMPTY
    loaded = np.argwhere(empty & (report.received > 0))
    if loaded.size:
        layer, slot = loaded[0].tolist()
        raise InvalidReport(
            f"rank {rank} layer {layer} slot {slot} is declared empty but counted "
            f"{report.received[layer, slot]} tokens",
            reason="empty_slot",
        )


def _check_sent(report: LoadReport, rank: int, group: Group) -> None:
    sent = report.sent
    if not len(sent.tokens) == len(sent.layers) == len(sent.experts):
        raise InvalidReport(
            f"rank {rank} reported {len(sent.layers)} layers, {len(sent.experts)} experts and "
            f"{len(sent.tokens)} counts of sent tokens; expected as many of each",
            reason="shape",
        )
    placement = group.placement
    known = (sent.layers >= 0) & (sent.layers < placement.num_layers)
    known &= (sent.experts >= 0) & (sent.experts < placement.num_experts)
    if not known.all():
        at = int(np.flatnonzero(~known)[0])
        raise InvalidReport(
            f"rank {rank} reported tokens sent to expert {sent.experts[at]} of layer "
            f"{sent.layers[at]}; there are {placement.num_experts} experts in "
            f"{placement.num_layers} layers",
            reason="unknown_expert",
        )
    _check_counts(sent.tokens, rank, "")
