"""What an exchange of rows, or a capture of ids, refuses by name.

MoeError
BadMask               a mask that the block it belongs to cannot have
BeyondLimit           more than an exchange's operators take
ImpossibleMode        an exchange mode that cannot serve this deployment
RanksDisagree         ranks are about to enter an exchange with different numbers
CaptureUnavailable    captured ids that no router could have chosen
ExchangeLate          a collective that some rank never entered, until the deadline
GroupLost             a step broke off on this rank, and peers wait for the rest of it
"""

from collections.abc import Sequence

from moe_runtime.contracts.errors import MoeError

__all__ = [
    "BadMask",
    "BeyondLimit",
    "CaptureUnavailable",
    "ExchangeLate",
    "GroupLost",
    "ImpossibleMode",
    "RanksDisagree",
]


class BadMask(MoeError):
    """A mask that the block it belongs to cannot have."""

    code = "bad_mask"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; nothing was sent and the step stops here")


class BeyondLimit(MoeError):
    """More than an exchange's operators take."""

    code = "beyond_limit"

    def __init__(self, limit: str, *, got: int, most: int, also: str = "") -> None:
        self.limit, self.got, self.most = limit, got, most
        expected = f"{most} at most" + (f", {also}" if also else "")
        super().__init__(
            f"{limit}: {got}, the exchange's operators take {expected}; nothing was sent"
        )


class ImpossibleMode(MoeError):
    """An exchange mode that cannot serve this deployment."""

    code = "impossible_mode"

    def __init__(self, mode: str, *, reasons: Sequence[str]) -> None:
        self.mode, self.reasons = mode, tuple(reasons)
        super().__init__(
            f"exchange mode {mode} cannot be used: {'; '.join(reasons)}; choose another one or "
            "leave the choice to the table"
        )


class RanksDisagree(MoeError):
    """Ranks are about to enter an exchange with different numbers."""

    code = "ranks_disagree"

    def __init__(self, what: str, *, told: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        self.what, self.told = what, tuple(tuple(row) for row in told)
        differ = [i for i in range(len(names)) if len({row[i] for row in self.told}) > 1]
        each = "; ".join(f"{names[i]} {[row[i] for row in self.told]} by rank" for i in differ)
        super().__init__(
            f"{what} must be the same on every rank, but is not: {each}; nothing was allocated or "
            "sent, since the ranks would wait for each other"
        )


class CaptureUnavailable(MoeError):
    """Captured ids that no router could have chosen."""

    code = "capture_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"capture unavailable: {reason}; they are not handed on as data")


class ExchangeLate(MoeError):
    """A collective that some rank never entered, until the deadline."""

    code = "exchange_late"

    def __init__(self, *, rank: int, what: str, deadline_s: float) -> None:
        self.rank, self.what, self.deadline_s = rank, what, deadline_s
        super().__init__(
            f"rank {rank}: not every rank entered the exchange of {what} within {deadline_s:g} s; "
            "a peer is gone, late or out of step, the group cannot go on and this step is lost"
        )


class GroupLost(MoeError):
    """A step broke off on this rank, and peers wait for the rest of it."""

    code = "group_lost"

    def __init__(self, first: str) -> None:
        self.first = first
        super().__init__(
            f"the group of ranks is lost since a step over it broke off here ({first}); peers "
            "may wait for the rest of that step and would take the next one for it, so nothing was "
            "started; start the ranks again, or serve on without those that are dead"
        )
