"""What operators say of their deployment, where nothing measured it: times, sizes, nodes."""

from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass
from math import inf, isnan, nan

from eplb_service.cli.ends import invalid
from eplb_service.cli.what_if import Evenness, Outcome
from eplb_service.cli.words import NEVER, NO_DATA, count
from eplb_service.domain.errors import EplbError
from eplb_service.domain.plan import MOST_PAYBACK
from eplb_service.gates.advice import Prospects, advise
from eplb_service.policies.bounds import Topology
from eplb_service.policies.catalog import policy_named


@dataclass(frozen=True, slots=True)
class Costs:
    """Times and sizes; 0 where nobody said."""

    expert_bytes: int
    """One expert of one layer."""
    step_s: float
    expert_s: float
    """Of it, expert computation on the slowest rank."""
    stall_s: float
    """What serving loses to the whole plan."""
    use_shares: bool
    """Whether ranks divide tokens by shares that the controller sets."""

    @property
    def has_times(self) -> bool:
        """Whether a pay-back can be said."""
        return bool(self.step_s and self.expert_s and self.stall_s)

    def imbalance(self, found: Evenness) -> float:
        """The imbalance that counts where they serve."""
        return found.shares if self.use_shares else found.even

    def payback_steps(self, found: Outcome) -> float:
        """Steps until the stall is won back; infinite where it is not, NaN where not known."""
        if not self.has_times:
            return float("nan")
        now, then = self.imbalance(found.before), self.imbalance(found.after)
        told = Prospects("", now, then, 0.0, self.step_s, self.expert_s, self.stall_s, inf)
        return advise(told).payback_s / self.step_s


def costs_of(args: Namespace) -> Costs:
    """Take what was said; raises Failure where experts take longer than their step."""
    step_ms, expert_ms = args.step_ms or 0.0, args.expert_ms or 0.0
    if expert_ms > step_ms > 0:
        raise invalid(
            f"experts take {expert_ms:g} ms of a step of {step_ms:g} ms; expected no more than "
            "the whole step"
        )
    stall_ms: float = args.stall_ms or 0.0
    return Costs(
        args.expert_bytes or 0, step_ms / 1e3, expert_ms / 1e3, stall_ms / 1e3, args.shares
    )


def payback(steps: float) -> str:
    """Say after how many steps a plan has paid."""
    if isnan(steps):
        return NO_DATA
    return count(round(steps), "step") if steps <= MOST_PAYBACK else NEVER


def policies(text: str) -> tuple[str, ...]:
    """Read policies by name, with commas."""
    try:
        return tuple(dict.fromkeys(policy_named(part.strip()).name for part in text.split(",")))
    except EplbError as error:
        raise ArgumentTypeError(str(error)) from error


def milliseconds(text: str) -> float:
    """Read a time in milliseconds, more than nothing."""
    return _above_zero(text, "time; write milliseconds above 0, for example 40")


def above_zero(text: str) -> float:
    """Read a finite number above 0."""
    return _above_zero(text, "number above 0")


def _above_zero(text: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0 < value < inf:
        raise ArgumentTypeError(f"{text!r} is no {expected}")
    return value


def topology_of(num_ranks: int, args: Namespace) -> Topology:
    """Where ranks stand: as many on each of --nodes, and --groups of the router's experts."""
    if args.nodes is None:
        return Topology((), args.groups)
    each, rest = divmod(num_ranks, args.nodes) if args.nodes else (0, 1)
    if rest or not each:
        raise invalid(f"{num_ranks} ranks do not divide over {args.nodes} nodes")
    return Topology(tuple(f"node{rank // each}" for rank in range(num_ranks)), args.groups)
