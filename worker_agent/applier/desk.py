"""The desk between the step's thread and the agent's: all that the two share."""

from dataclasses import dataclass

from eplb_service.domain.ids import Generation
from eplb_service.domain.placement import Placement
from eplb_service.protocol.messages import Abort, Arm, NewShares, RankStatus, Resume, Word
from eplb_service.protocol.rank_state import Offer
from worker_agent.applier.mailbox import Bell, Mailbox

Checked = Offer | NewShares | Arm | Abort | Resume
"""A word down that the agent has checked, on its way to the rank machine."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What Hello tells: one consistent view of a rank, replaced whole."""

    status: RankStatus
    placement: Placement
    """What `status.served` names."""
    generation_seen: Generation


class Desk:
    """Mailboxes both ways, the newest snapshot, and the steps begun.

    The step side writes `snapshot`, `steps_begun` and the outbox, and takes from the
    inbox; the agent's side the other way round. A reference is replaced in one
    operation, so whoever reads `snapshot` reads one whole. The snapshot is published
    before the words that it explains: a word that is dropped is told by the next Hello.
    """

    def __init__(self, snapshot: Snapshot, *, inbox_size: int = 64, outbox_size: int = 256) -> None:
        self.inbox: Mailbox[Checked] = Mailbox(inbox_size)
        self.outbox: Mailbox[Word] = Mailbox(outbox_size)
        self.bell = Bell()
        self.snapshot = snapshot
        self.steps_begun = 0
        self.is_step_awaited = False
        """Set by the agent while it holds the group for idle: the next step rings."""
