"""The invariants, looked at after every event.

Right      the slot that a dispatch table names holds that expert
Together   all ranks serve the same, in the same state of halt, and are in the same round
Record     what ranks do and say never contradicts what is on record
"""

from eplb_service.domain.detours import Place, place_number
from eplb_service.domain.ids import Incarnation, IntArray
from eplb_service.domain.shares import Ownership, ShareName, Shares
from eplb_service.protocol.messages import Halted, OutcomeKind, RankPhase, Word
from eplb_service.protocol.wave_state import WavePhase
from eplb_service.sim.group import Group
from eplb_service.sim.rank import SimRank
from eplb_service.sim.store import SimStore
from eplb_service.sim.story import Violation

SERVABLE = (WavePhase.MAY_COMMIT, WavePhase.COMMITTED, WavePhase.SETTLED)
Tables = list[list[list[int]]]


class Checks:
    """Looks at a whole deployment; keeps what every name of shares must stand for."""

    def __init__(self) -> None:
        self._named: dict[ShareName, Shares] = {}
        self._looked_at: tuple[object, ...] = ()
        """What slots and tables rested on when they were last found right."""
        self._placed: list[tuple[int, int]] = []
        self.resumed: set[tuple[Incarnation, int]] = set()
        """Halts, by incarnation and number, that a controller asked to end."""

    def name(self, name: ShareName, shares: Shares) -> None:
        """Remember which tables a name stands for."""
        self._named[name] = shares

    def hear(self, incarnation: Incarnation, word: Word) -> None:
        """Raise Violation if a halt ends that nobody asked to end."""
        if not isinstance(word, Halted) or word.halt.is_active or not word.halt.number:
            return
        if (incarnation, word.halt.number) not in self.resumed:
            raise Violation(f"halt {word.halt.number} ended, but nobody resumed it")

    def look(self, group: Group, store: SimStore) -> None:
        """Raise Violation if any invariant is broken."""
        self._right(group)
        self._together(group)
        self._rounds(group)
        self._held(group)
        self._record(group, store)

    def _right(self, group: Group) -> None:
        now = (group.incarnation, *((r.num_changes, r.state.served) for r in group.ranks))
        if now == self._looked_at:
            return
        places = self._places(group)
        for rank in group.ranks:
            for layer, rows in enumerate(rank.tables):
                for expert, row in enumerate(rows):
                    for slot in row:
                        owner, local = places[slot]
                        held = group.ranks[owner].slots[layer][local]
                        if held != expert and not is_excused(
                            group.ranks[owner], Place(layer, slot)
                        ):
                            raise Violation(
                                f"rank {rank.rank} sends expert {expert} of layer {layer} to slot "
                                f"{slot}, which holds {held}"
                            )
            self._tables_are_named(rank)
        self._looked_at = now

    def _places(self, group: Group) -> list[tuple[int, int]]:
        if not self._placed:
            layout = group.deployment.initial.layout
            ranks: IntArray = layout.rank_of_slot()
            self._placed = list(zip(ranks.tolist(), layout.local_slot().tolist(), strict=True))
        return self._placed

    def _tables_are_named(self, rank: SimRank) -> None:
        shares = self._named.get(rank.state.served)
        if shares is None:
            raise Violation(f"rank {rank.rank} serves {rank.state.served}, which nobody made")
        if rank.state.halt.avoided:
            return
        if rank.tables != shares.table_of(rank.rank).tolist():
            raise Violation(f"rank {rank.rank} uses other tables than {rank.state.served} names")

    def _together(self, group: Group) -> None:
        first = group.ranks[0].state
        for rank in group.ranks[1:]:
            state = rank.state
            if (state.served.epoch, state.served.placement) != (
                first.served.epoch,
                first.served.placement,
            ):
                raise Violation(
                    f"rank {rank.rank} serves epoch {state.served.epoch}, rank 0 epoch "
                    f"{first.served.epoch}"
                )
            if (state.halt.status.number, state.halt.status.is_active) != (
                first.halt.status.number,
                first.halt.status.is_active,
            ):
                raise Violation(f"rank {rank.rank} and rank 0 differ about the halt")
            if state.ownership is Ownership.REPLICATED and state.served != first.served:
                raise Violation(f"rank {rank.rank} and rank 0 use different replicated tables")

    def _rounds(self, group: Group) -> None:
        for rank, part in group.transfers.in_round():
            held = group.ranks[rank].state.held
            is_known = (
                held is not None
                and (held.name, held.rounds_begun) == (part.wave, part.number)
                and held.rounds_done == part.number - 1
            )
            if not is_known:
                raise Violation(
                    f"rank {rank} left round {part.number} of epoch {part.wave.epoch} alone"
                )

    def _held(self, group: Group) -> None:
        for rank in group.ranks:
            held = rank.state.held
            if held is None or held.withdrawn or held.phase is RankPhase.DRAINING:
                continue
            if held.order.incarnation != group.incarnation:
                raise Violation(
                    f"rank {rank.rank} holds an order for incarnation {held.order.incarnation}"
                )
            if (rank.rank, held.name.epoch) in group.refused:
                raise Violation(
                    f"rank {rank.rank} holds epoch {held.name.epoch}, which it said that it "
                    "never would hold again"
                )

    def _record(self, group: Group, store: SimStore) -> None:
        served = group.ranks[0].state.served.epoch
        if served != group.loaded.epoch:
            record = store.records[served]
            if record.incarnation != group.incarnation or record.phase not in SERVABLE:
                raise Violation(
                    f"incarnation {group.incarnation} serves epoch {served}, which is "
                    f"{record.phase} for incarnation {record.incarnation}"
                )
        for wave, ends in group.ends.items():
            record = store.records.get(wave.epoch)
            if record is None or record.wave != wave or record.incarnation != group.incarnation:
                continue
            if len(ends) > 1:
                raise Violation(f"epoch {wave.epoch}: one rank cut over, another dropped it")
            self._end_fits(wave.epoch, ends, record.phase)

    def _end_fits(self, epoch: int, ends: set[OutcomeKind], phase: WavePhase) -> None:
        has_cut_over = OutcomeKind.CUT_OVER in ends
        wrong = (
            (WavePhase.ABORTED, WavePhase.SPENT)
            if has_cut_over
            else (WavePhase.COMMITTED, WavePhase.SETTLED)
        )
        if phase in wrong:
            told = "cut over" if has_cut_over else "dropped"
            raise Violation(f"epoch {epoch} is {phase} on record, but a rank {told}")


def is_excused(owner: SimRank, place: Place) -> bool:
    """Whether a slot has just rotted, and the group has not agreed since to route around it."""
    num_slots = owner.placement.layout.num_slots
    number = place_number(place.layer, place.slot, num_slots=num_slots)
    return place in owner.rotten and number not in owner.state.halt.avoided
