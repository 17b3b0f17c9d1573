"""Drawing shares: a pure function from heat and the tables in use to better ones, if any.

Nothing moves for them, so they need no budget and no pay-back; what holds them back is noise.
A layer keeps its rows unless new ones win more than counting alone would feign.

Axes    L MoE layers   E logical experts   N ranks   J rows of a dispatch table
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from eplb_service.domain.errors import InvalidTable
from eplb_service.domain.heat import Heat, mean_with_data
from eplb_service.domain.ids import FloatArray, IntArray
from eplb_service.domain.placement import Placement
from eplb_service.domain.shares import Ownership, Shares, dispatch_violations, even_shares
from eplb_service.policies.shares import load_under, shares_by_row, shares_by_source
from eplb_service.policies.split import cost_imbalance
from eplb_service.policies.terms import PLAIN, Terms

MOST_CELLS = 1 << 22
"""Of heat by source that are held at once: 32 MiB, whatever the deployment's size."""


@dataclass(frozen=True, slots=True, eq=False)
class ShareTask:
    """Everything that shares are drawn from."""

    heat: Heat
    placement: Placement
    ownership: Ownership
    in_use: Shares | None
    """Tables of all ranks; None where they are not known, so that any others are better, and
    where `is_even`: those need not travel."""
    nodes: tuple[str, ...]
    """[N] node of each rank; empty where not known."""
    min_gain: float
    """Least drop of a layer's imbalance, beyond what noise feigns, for new rows."""
    locality_price: float
    """Tokens of imbalance that are given to keep one token on its node, or on its rank."""
    terms: Terms = PLAIN
    """What a rank's load is made of."""
    is_even: bool = False
    """Whether the tables in use are the even ones."""

    def known(self) -> "ShareTask":
        """Return the task with the even tables written out, where they are in use."""
        if not self.is_even:
            return self
        even = even_shares(self.placement, self.ownership)
        return replace(self, in_use=even, is_even=False)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Tables worth sending, and what they promise."""

    shares: Shares
    before: FloatArray
    """[L] imbalance predicted under the tables in use; NaN without load."""
    after: FloatArray
    """[L] under the new ones."""
    num_layers: int
    """Layers that get other rows."""


def propose(task: ShareTask) -> Proposal | None:
    """Draw new tables; None where no layer would win enough.

    Raises InvalidTable for heat that is no heat, and for tables of ours that are unsound.
    """
    task = task.known()
    tables, before, after = _drawn(task)
    if task.in_use is None:
        better = np.ones(len(before), dtype=np.bool_)
    else:
        gain = np.nan_to_num(before - after)
        better = gain > task.min_gain + noise(task.heat.tokens, task.placement.layout.num_ranks)
        tables = np.where(better[None, :, None, None], tables, task.in_use.tables)
    if not better.any():
        return None
    shares = Shares(np.ascontiguousarray(tables, dtype=np.int32), task.ownership)
    require_sound(shares, task.placement)
    return Proposal(shares, before, np.where(better, after, before), int(better.sum()))


def noise(tokens: FloatArray, num_ranks: int) -> FloatArray:
    """[L] imbalance that ranks of equal load show when so few tokens are counted.

    tokens    [L, E]

    The largest of N equal counts with mean m lies about sqrt(2 ln N / m) above the mean.

    >>> noise(np.array([[400.0, 400.0], [0.0, 0.0]]), 8).round(3).tolist()
    [0.204, inf]
    """
    mean = tokens.sum(axis=1) / num_ranks
    out = np.full(len(mean), np.inf)
    return np.sqrt(np.divide(2 * np.log(max(num_ranks, 2)), mean, out=out, where=mean > 0))


def mean_noise(tokens: FloatArray, num_ranks: int) -> float:
    """Mean of the above over layers with tokens; NaN where none has any."""
    counted = noise(tokens, num_ranks)
    return mean_with_data(np.where(np.isfinite(counted), counted, np.nan))


def require_sound(shares: Shares, placement: Placement) -> None:
    """Raise InvalidTable unless every row of every source names a slot that holds its expert."""
    for source, table in enumerate(shares.tables):
        found = next(dispatch_violations(table, placement), None)
        if found is not None:
            raise InvalidTable(
                f"the table of source {source} is unsound: layer {found.layer}: {found.text}; "
                "it was not sent"
            )


def _drawn(task: ShareTask) -> tuple[IntArray, FloatArray, FloatArray]:
    """New tables [N or 1, L, E, J], and the imbalance [L] before and after."""
    tables: list[IntArray] = []
    before: list[FloatArray] = []
    after: list[FloatArray] = []
    for layers in _pieces(task):
        rows = task.placement.phy2log[layers.start : layers.stop].copy()
        piece = Placement(
            rows, task.placement.num_experts, task.placement.layout, task.placement.num_shared
        )
        sent = _by_source(task, layers)
        if task.ownership is Ownership.OWN:
            drawn = shares_by_source(
                sent, piece, nodes=task.nodes, price=task.locality_price, terms=task.terms
            )
        else:
            drawn = shares_by_row(sent[0], piece, terms=task.terms)
        tables.append(drawn.tables)
        after.append(_imbalance(task, drawn, sent, piece))
        before.append(_under_use(task, layers, sent, piece))
    return np.concatenate(tables, axis=1), np.concatenate(before), np.concatenate(after)


def _pieces(task: ShareTask) -> Iterator[range]:
    num_layers, num_experts = task.heat.tokens.shape
    size = max(1, MOST_CELLS // (num_experts * task.placement.layout.num_ranks))
    for first in range(0, num_layers, size):
        yield range(first, min(first + size, num_layers))


def _by_source(task: ShareTask, layers: range) -> FloatArray:
    """[N or 1, l, E] heat of some layers by source; tokens that are replicated have one."""
    tokens = task.heat.tokens[layers.start : layers.stop]
    if task.ownership is Ownership.REPLICATED:
        return tokens[None]
    if task.heat.by_source is None:
        num_ranks = task.placement.layout.num_ranks
        return np.broadcast_to(tokens / num_ranks, (num_ranks, *tokens.shape))
    return task.heat.by_source.spread(task.heat.tokens, layers)


def _under_use(
    task: ShareTask, layers: range, sent: FloatArray, placement: Placement
) -> FloatArray:
    if task.in_use is None:
        return np.full(len(layers), np.nan)
    tables = task.in_use.tables[:, layers.start : layers.stop]
    return _imbalance(task, Shares(tables.copy(), task.ownership), sent, placement)


def _imbalance(
    task: ShareTask, shares: Shares, sent: FloatArray, placement: Placement
) -> FloatArray:
    """[L] of what ranks bear when sources [N or 1, L, E] send by these tables."""
    tokens = load_under(shares, sent, placement)
    return cost_imbalance(tokens, sent.sum(axis=0), placement, task.terms)
