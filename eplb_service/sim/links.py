"""Streams between controllers and ranks: they break, are cut off, and are opened again."""

from collections.abc import Iterable
from typing import Protocol

from eplb_service.controller.machine_state import RankLeft, RankStepped
from eplb_service.domain.ids import Incarnation
from eplb_service.sim.controller import SimController
from eplb_service.sim.group import Group
from eplb_service.sim.network import Letter, Network
from eplb_service.sim.story import Story


class Linked(Protocol):
    """What of a world has to do with its streams."""

    network: Network
    group: Group
    story: Story
    controllers: list[SimController]


def reconnect(world: Linked) -> None:
    """Ranks whose streams broke open new ones; the controller saw the old ones end."""
    broken, world.network.broken = world.network.broken, []
    for number, rank in broken:
        controller = world.controllers[number]
        if not controller.is_alive or (number, rank) in world.network.severed:
            continue
        world.story.tell(f"the stream of r{rank} with controller {number} broke")
        _leave(controller, rank)
        hello = world.group.ranks[rank].hello(is_idle=world.group.is_idle)
        incarnation = Incarnation(world.group.incarnation)
        world.network.send(Letter(number, rank, incarnation, is_up=True, word=hello))


def partition(world: Linked, controller: SimController, ranks: Iterable[int]) -> None:
    """Let nothing pass between a controller and some ranks; it sees their streams end."""
    for rank in ranks:
        world.network.sever((controller.number, rank))
        _leave(controller, rank)


def report(world: Linked, controller: SimController) -> None:
    """Every rank's load report tells its step, where it arrives; ranks that step are not idle."""
    beliefs, at = controller.beliefs, world.group.step
    is_news = at > beliefs.step
    for rank in world.group.ranks:
        if (controller.number, rank.rank) not in world.network.severed:
            if is_news:
                beliefs.rest(rank.rank, is_idle=False)
                beliefs.tick(at)
            told = RankStepped(rank.rank, world.group.incarnation, at)
            controller.desk.tell(told, controller.beliefs)


def _leave(controller: SimController, rank: int) -> None:
    left = RankLeft(rank, controller.beliefs.incarnation)
    controller.desk.tell(left, controller.beliefs)
