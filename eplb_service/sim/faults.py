"""What goes wrong in a world: each fault tells whether it could happen."""

from random import Random

from eplb_service.controller.machine_state import Ticked
from eplb_service.domain.detours import Place, others_of, place_of
from eplb_service.protocol.messages import DropReason, Idle
from eplb_service.protocol.rank_state import RaiseHalt, Withdraw
from eplb_service.sim.group import Group
from eplb_service.sim.links import partition, reconnect
from eplb_service.sim.store import Trouble
from eplb_service.sim.work import Weighted, any_leader
from eplb_service.sim.world import World

ROTTING = 0.4
"""Share of the runs in which slots lose what they hold."""


class Faults:
    """Everything that can go wrong beside the network."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._num_torn = world.rng.choice((0.0, 0.0, 0.05, 0.2))
        if world.planner is not None:
            world.store.trouble = self._trouble

    def table(self) -> tuple[Weighted, ...]:
        """Every fault with its weight; not every one in every run.

        Some only show when nothing else interferes.
        """
        faults: tuple[Weighted, ...] = (
            (0.2, self._give_up),
            (0.2, self._withdraw),
            (0.12, self._halt),
            (0.25, self._crash_controller),
            (0.4, self._start_controller),
            (0.15, self._restart_group),
            (0.3, self._idle),
            (0.3, self._partition),
            (0.3, self._jump_clock),
            (0.2, self._change_policy),
        )
        # Drawn aside, so that seeds without it are as they were before there was such a fault.
        rots = Random(str(self._rng.getstate())).random() < ROTTING
        some = [(weight * self._rng.choice((0, 0, 1, 2)), fault) for weight, fault in faults]
        always = (
            (0.1, self._start_controller),
            (0.3, self._end_idle),
            (0.4, self._mend),
        )
        return (*some, *always, (0.12 if rots else 0.0, self._rot))

    def _trouble(self) -> Trouble:
        if self._rng.random() >= self._num_torn:
            return Trouble.NONE
        return self._rng.choice((Trouble.TORN, Trouble.UNHEARD))

    def _partition(self) -> bool:
        leader = any_leader(self._world)
        if leader is None:
            return False
        ranks = [r.rank for r in self._world.group.ranks if self._rng.random() < 0.6]
        self._world.story.tell(f"controller {leader.number} is cut off from ranks {ranks}")
        partition(self._world, leader, ranks)
        return True

    def _mend(self) -> bool:
        if not self._world.network.severed:
            return False
        self._world.story.tell("all partitions end")
        self._world.network.mend()
        reconnect(self._world)
        return True

    def _jump_clock(self) -> bool:
        leader = any_leader(self._world)
        if leader is None:
            return False
        elapsed_s, now_s = self._rng.choice((0.0, 3.0, 3600.0)), self._rng.choice((-1e9, 0.0, 4e9))
        self._world.story.tell(f"the clock of controller {leader.number} jumps to {now_s:.0f}")
        leader.now_s = now_s
        leader.desk.tell(Ticked(elapsed_s, now_s), leader.beliefs)
        return True

    def _change_policy(self) -> bool:
        planner = self._world.planner
        if planner is None:
            return False
        self._world.story.tell(f"policy {planner.change_policy()} is put in force")
        return True

    def _give_up(self) -> bool:
        leader = any_leader(self._world)
        if leader is None or leader.wave is None or leader.wave.is_over:
            return False
        self._world.story.tell(f"controller {leader.number} is told to abort")
        leader.give_up("operator")
        return True

    def _withdraw(self) -> bool:
        holding = [rank for rank in self._world.group.ranks if rank.state.held]
        if not holding:
            return False
        rank = self._rng.choice(holding)
        assert rank.state.held is not None
        self._world.story.tell(f"r{rank.rank} withdraws {rank.state.held.name.epoch}")
        rank.handle(Withdraw(rank.state.held.name, DropReason.TRANSFER_FAILED))
        self._world.look()
        return True

    def _halt(self) -> bool:
        rank = self._rng.choice(self._world.group.ranks)
        self._world.story.tell(f"r{rank.rank} raises a halt")
        rank.handle(RaiseHalt("drawn by chance"))
        self._world.look()
        return True

    def _rot(self) -> bool:
        place = draw_slot(self._world.group, self._rng)
        if place is None:
            return False
        rank = int(self._world.deployment.initial.layout.rank_of_slot()[place.slot])
        self._world.story.tell(f"slot {place.slot} of layer {place.layer} rots at r{rank}")
        self._world.group.ranks[rank].rot(place)
        self._world.look()
        return True

    def _crash_controller(self) -> bool:
        leader = any_leader(self._world)
        if leader is None:
            return False
        self._world.story.tell(f"controller {leader.number} crashes")
        leader.is_alive = False
        return True

    def _start_controller(self) -> bool:
        if len(self._world.leaders) > 1:
            return False
        self._world.start_controller()
        return True

    def _restart_group(self) -> bool:
        self._world.story.tell("the group is restarted")
        late = [r for r in range(self._world.deployment.num_ranks) if self._rng.random() < 0.2]
        self._world.restart_group(late=late)
        return True

    def _end_idle(self) -> bool:
        return self._world.group.is_idle and self._idle()

    def _idle(self) -> bool:
        group = self._world.group
        group.is_idle = not group.is_idle
        self._world.story.tell(f"the group is {'idle' if group.is_idle else 'busy'}")
        for rank in group.ranks:
            rank.say(Idle(group.is_idle, group.step))
        return True


def draw_slot(group: Group, rng: Random) -> Place | None:
    """Draw a slot; None if it is known to be lost, or its expert has no other good replica."""
    rank = rng.choice(group.ranks)
    layer = rng.randrange(len(rank.slots))
    place = Place(layer, rank.base + rng.randrange(len(rank.slots[layer])))
    num_slots = rank.placement.layout.num_slots
    lost = {slot for other in group.ranks for slot in other.rotten} | {
        place_of(number, num_slots=num_slots)
        for other in group.ranks
        for number in (*other.state.halt.avoided, *other.state.halt.bad_slots)
    }
    is_free = place not in lost and len(others_of(rank.placement, place, lost)) > 0
    return place if is_free else None
