"""Failures after which a rank must not run another step.

    RankMustEnd
      OutOfStep        the group's ranks agreed before different steps
      GroupLost        the agreement did not complete: a peer is gone or late
      SwitchFailed     an agreed switch of slots or tables could not be finished
      ExpertCorrupt    an expert's only slot does not hold it any more

They derive from BaseException, so that an engine loop that goes on after an
Exception cannot go on after these: a rank that cannot do what its group agreed
ends its process, and the group restarts whole. `code` is stable; it is logged.
"""

from typing import ClassVar


class RankMustEnd(BaseException):
    """Root of the failures that end a rank's process."""

    code: ClassVar[str] = "rank_must_end"


class OutOfStep(RankMustEnd):
    """The group's ranks agreed before different steps."""

    code = "out_of_step"

    def __init__(self, *, rank: int, step: int) -> None:
        self.rank, self.step = rank, step
        super().__init__(
            f"rank {rank} agreed before step {step}, but another rank of its group before a "
            "different one; expected every rank to call the hook once for every forward, real or "
            "dummy; this rank ends, since nothing can be switched together any more"
        )


class GroupLost(RankMustEnd):
    """The agreement did not complete: a peer is gone or late."""

    code = "group_lost"

    def __init__(self, *, rank: int, cause: str) -> None:
        self.rank = rank
        super().__init__(
            f"rank {rank}: the agreement of its group did not complete ({cause}); expected all "
            "ranks within the group's time limit; this rank ends, and the group restarts whole"
        )


class SwitchFailed(RankMustEnd):
    """An agreed switch of slots or tables could not be finished."""

    code = "switch_failed"

    def __init__(self, *, rank: int, what: str, cause: str) -> None:
        self.rank, self.what = rank, what
        super().__init__(
            f"rank {rank} could not put {what} in use ({cause}), although its group agreed to; "
            "the other ranks serve it already, so this rank ends before its next forward"
        )


class ExpertCorrupt(RankMustEnd):
    """An expert's only slot does not hold it any more, and the setting on_corruption says fail."""

    code = "expert_corrupt"

    def __init__(self, *, rank: int, layer: int, slot: int, expert: int, of_rank: int) -> None:
        self.rank, self.layer, self.slot, self.expert = rank, layer, slot, expert
        super().__init__(
            f"rank {rank} ends with its group: layer {layer}, slot {slot} of rank {of_rank} does "
            f"not hold expert {expert} any more, and no other replica is good; on_corruption is "
            "fail, so the group restarts and loads good weights"
        )
