"""What ranks that live refuse by name when they are to serve on without the dead.

MoeError
ExpertsLost           no rank that lives holds an expert, and the source named for it has it not
"""

from collections.abc import Sequence

from moe_runtime.contracts.errors import MoeError

__all__ = ["ExpertsLost"]


MAX_NAMED = 8
"""Experts named in one error."""


class ExpertsLost(MoeError):
    """No rank that lives holds an expert, and the source named for it has it not."""

    code = "experts_lost"

    def __init__(
        self, *, rank: int, source: str, reasons: Sequence[str], unfilled_N: Sequence[int]
    ) -> None:
        self.rank, self.source, self.reasons = rank, source, tuple(reasons)
        others = [
            f"rank {other} lacks {num}"
            for other, num in enumerate(unfilled_N)
            if num and other != rank
        ]
        more = len(reasons) - MAX_NAMED
        told = [*reasons[:MAX_NAMED], *([f"and {more} more"] if more > 0 else ()), *others]
        super().__init__(
            f"rank {rank}: experts have no replica on a rank that lives, and were to come from "
            f"{source}: {'; '.join(told)}; no step runs, name a source that has "
            "them or start the group again"
        )
