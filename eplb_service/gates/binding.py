"""Gates that bind every plan, an operator's too: halts and budgets."""

from collections.abc import Callable

import numpy as np

from eplb_service.domain.ids import IntArray
from eplb_service.domain.plan import Answer, Finding, Plan, PlannedWave
from eplb_service.domain.wave import LAYER, SOURCE, TARGET
from eplb_service.gates.context import GateContext

SETTINGS = {
    "move_budget": "budget.max_moves",
    "byte_budget": "budget.max_bytes",
    "layer_budget": "budget.max_moves_per_layer",
    "rank_budget": "budget.max_moves_per_rank",
}
"""What to raise, by gate."""


def halt(context: GateContext) -> Finding:
    """Nothing runs over a halt."""
    held = context.standing.halt
    return Finding("halt", Answer.NO if held else Answer.YES, held or "no halt stands")


def move_budget(context: GateContext) -> Finding:
    """A plan may change only so many slots; the first waves that fit may run."""
    costs, limit = move_costs(context.plan), context.budget.max_moves
    return _within("move_budget", costs, limit, f"{sum(costs)} moves")


def byte_budget(context: GateContext) -> Finding:
    """A plan may send only so many bytes; the first waves that fit may run."""
    costs, limit = byte_costs(context.plan), context.budget.max_bytes
    return _within("byte_budget", costs, limit, f"{sum(costs)} bytes")


def layer_budget(context: GateContext) -> Finding:
    """A plan may change only so many slots of one layer; the first waves that fit may run."""
    return _busiest_within("layer_budget", layer_peaks(context.plan), context.budget.per_layer)


def rank_budget(context: GateContext) -> Finding:
    """A plan may change only so many slots of one rank; the first waves that fit may run."""
    return _busiest_within("rank_budget", rank_peaks(context.plan), context.budget.per_rank)


def affordable_waves(context: GateContext) -> int:
    """How many of the first waves stay within all budgets."""
    plan, budget = context.plan, context.budget
    peaks = ((layer_peaks(plan), budget.per_layer), (rank_peaks(plan), budget.per_rank))
    return min(
        num_waves_within(move_costs(plan), budget.max_moves),
        num_waves_within(byte_costs(plan), budget.max_bytes),
        *(sum(peak <= most for peak in found) for found, most in peaks if most is not None),
    )


def layer_peaks(plan: Plan) -> list[int]:
    """Moves of the layer with most of them, up to and with each wave."""
    return _peaks([wave.content.transfers[:, LAYER] for wave in plan.waves])


def rank_peaks(plan: Plan) -> list[int]:
    """Moves into the rank with most of them, up to and with each wave."""
    ranks = plan.waves[0].placement.layout.rank_of_slot()
    return _peaks([ranks[wave.content.transfers[:, TARGET]] for wave in plan.waves])


def _peaks(waves: list[IntArray]) -> list[int]:
    """Count each wave's entries by number, and tell the highest count so far."""
    size = 1 + max((int(numbers.max(initial=0)) for numbers in waves), default=0)
    counts = np.cumsum([np.bincount(numbers, minlength=size) for numbers in waves], axis=0)
    return [int(count) for count in counts.max(axis=1)]


def _busiest_within(gate: str, peaks: list[int], most: int | None) -> Finding:
    what = gate.removesuffix("_budget")
    if most is None:
        return Finding(gate, Answer.YES, f"{peaks[-1]} moves in one {what}; no budget is set")
    return _within(
        gate, np.diff(peaks, prepend=0).tolist(), most, f"{peaks[-1]} moves in one {what}"
    )


def move_costs(plan: Plan) -> list[int]:
    """Slots that each wave fills."""
    return [len(wave.content.transfers) for wave in plan.waves]


def byte_costs(plan: Plan) -> list[int]:
    """Bytes that each wave sends between ranks."""
    remote = [_num_remote(wave) for wave in plan.waves]
    each = plan.price.num_bytes // max(1, sum(remote))
    return [count * each for count in remote]


def num_waves_within(costs: list[int], limit: int) -> int:
    """How many of the first waves stay within the limit.

    >>> num_waves_within([40, 40, 40], 100)
    2
    """
    total = 0
    for number, cost in enumerate(costs):
        total += cost
        if total > limit:
            return number
    return len(costs)


def _num_remote(wave: PlannedWave) -> int:
    ranks = wave.placement.layout.rank_of_slot()
    transfers = wave.content.transfers
    return int((ranks[transfers[:, SOURCE]] != ranks[transfers[:, TARGET]]).sum())


def _within(gate: str, costs: list[int], limit: int, cost: str) -> Finding:
    fit = num_waves_within(costs, limit)
    if fit == len(costs):
        return Finding(gate, Answer.YES, f"{cost} of a budget of {limit}")
    if fit:
        text = f"{cost} exceed the budget of {limit}; the first {fit} of {len(costs)} waves fit"
        return Finding(gate, Answer.THROTTLE, text)
    first = f"its first wave alone costs {costs[0]}; raise {SETTINGS[gate]}"
    return Finding(gate, Answer.NO, f"{cost} exceed the budget of {limit}, and {first}")


BINDING: tuple[Callable[[GateContext], Finding], ...] = (
    halt,
    move_budget,
    byte_budget,
    layer_budget,
    rank_budget,
)
