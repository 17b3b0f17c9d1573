"""Gates that bind every plan, an operator's too: halts and budgets."""

from collections.abc import Callable

from eplb_service.domain.plan import Answer, Finding, Plan, PlannedWave
from eplb_service.domain.wave import SOURCE, TARGET
from eplb_service.gates.context import GateContext


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


def affordable_waves(context: GateContext) -> int:
    """How many of the first waves stay within both budgets."""
    plan, budget = context.plan, context.budget
    return min(
        num_waves_within(move_costs(plan), budget.max_moves),
        num_waves_within(byte_costs(plan), budget.max_bytes),
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
    first = (
        f"its first wave alone costs {costs[0]}; raise budget.max_{gate.removesuffix('_budget')}s"
    )
    return Finding(gate, Answer.NO, f"{cost} exceed the budget of {limit}, and {first}")


BINDING: tuple[Callable[[GateContext], Finding], ...] = (halt, move_budget, byte_budget)
