"""What goes wrong in a world: each fault tells whether it could happen."""

from eplb_service.protocol.messages import DropReason, Idle
from eplb_service.protocol.rank_state import RaiseHalt, Withdraw
from eplb_service.sim.work import Weighted, any_leader
from eplb_service.sim.world import World


class Faults:
    """Everything that can go wrong beside the network."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng

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
        )
        some = [(weight * self._rng.choice((0, 0, 1, 2)), fault) for weight, fault in faults]
        return (*some, (0.1, self._start_controller), (0.3, self._end_idle))

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
        self._world.restart_group()
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
