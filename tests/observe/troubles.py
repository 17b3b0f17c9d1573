"""The faults behind alerts of one deployment: how each begins on a real controller, and ends."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

import numpy as np
from eplb.v1 import admin_pb2

from eplb_service.domain.ids import FloatArray
from eplb_service.protocol.messages import CutOver
from tests.host.processes import await_so, kill_children
from tests.observe.house import CALL_S, House, flat
from tests.observe.scripted import ScriptedGroup

SETTLE_S, LOOK_S = 240.0, 0.5
PLACEMENT = flat(layers=2, experts=4, ranks=2, slots=2)
SLOPED = np.tile([2000.0, 2000.0, 100.0, 100.0], (2, 1))
"""[L, E] both hot experts lie on rank 0 at first: it has 1.9 times the mean."""
ONE_HOT = np.tile([4200.0, 100.0, 100.0, 100.0], (2, 1))
"""[L, E] one expert is hotter than a rank can take, wherever it lies."""
EVEN = np.full((2, 4), 1000.0)

Act = Callable[[House, ScriptedGroup], None]


@dataclass(frozen=True)
class Trouble:
    """What is wrong with one deployment, which has its name."""

    name: str
    alerts: tuple[str, ...]
    begin: Act
    mend: Act
    heat: FloatArray
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that the alerts must carry beside the deployment's."""
    again: Act | None = None
    """What goes on happening until the alerts are told; nothing, where the fault stays."""


def apply(home: House, group: ScriptedGroup) -> None:
    """Draw a plan and start it."""
    assert home.apply(group.name, "packing", "to move something"), "a plan with moves"


def await_idle(home: House, group: ScriptedGroup) -> str:
    """Wait until no plan runs; return how the newest ended."""

    def phase() -> str:
        return home.status(group.name).operation.running.phase

    await_so(
        lambda: phase() != "running",
        within_s=SETTLE_S,
        what=f"{group.name}: the plan's end",
        every_s=LOOK_S,
    )
    return phase()


def nothing(home: House, group: ScriptedGroup) -> None:
    """What is wrong is so from the start, or ends by itself."""
    del home, group


def fault(**values: object) -> Act:
    """Tell the group what is wrong with it from now on."""

    def act(_home: House, group: ScriptedGroup) -> None:
        for name, value in values.items():
            assert hasattr(group.faults, name)
            setattr(group.faults, name, value)

    return act


def lose_cutovers_of_a_rank(home: House, group: ScriptedGroup) -> None:
    """All ranks switch, and rank 0's word of it never arrives."""
    group.faults.loses = lambda rank, word: rank == 0 and isinstance(word, CutOver)
    apply(home, group)


def find_all_words(_home: House, group: ScriptedGroup) -> None:
    """No word is lost any more."""
    group.faults.loses = lambda _rank, _word: False


def spoil_transfers(home: House, group: ScriptedGroup) -> None:
    """What arrives is not what was sent, so that the wave is given up."""
    group.faults.spoils = True
    apply(home, group)


def try_again(home: House, group: ScriptedGroup) -> None:
    """Start the plan that was given up once more."""
    assert await_idle(home, group) == "stopped"
    plan_id = home.status(group.name).operation.running.plan_id
    request = admin_pb2.ApplyRequest(act=home.act(group.name, "again"), plan_id=plan_id)
    home.admin.Apply(request, timeout=CALL_S)


def turn_after_the_plan(home: House, group: ScriptedGroup) -> None:
    """Traffic turns between a plan and its coming into service."""
    plan_id = home.plan(group.name, "packing", "for what was hot")
    group.heat = ONE_HOT
    request = admin_pb2.ApplyRequest(act=home.act(group.name, "late"), plan_id=plan_id)
    home.admin.Apply(request, timeout=CALL_S)
    assert await_idle(home, group) == "done"


def take_back(home: House, group: ScriptedGroup) -> None:
    """An operator rolls the newest plan back."""
    request = admin_pb2.RollbackRequest(act=home.act(group.name, "not so"))
    home.admin.Rollback(request, timeout=CALL_S)
    assert await_idle(home, group) == "done"


def halt(home: House, group: ScriptedGroup) -> None:
    """A rank finds a slot that is not what it should be."""
    home.do(group.halt("layer 1 slot 0: wrong digest"))


def resume(home: House, group: ScriptedGroup) -> None:
    """An operator has every rank audited, and ends the halt."""
    request = admin_pb2.ResumeRequest(act=home.act(group.name, "memory replaced"), halt_number=1)
    home.admin.Resume(request, timeout=CALL_S)


def hang_up(_home: House, group: ScriptedGroup) -> None:
    """Rank 1 loses its stream."""
    group.hang_up(1)


def come_back(home: House, group: ScriptedGroup) -> None:
    """Rank 1 greets again."""
    home.do(group.connect(1))


def freeze(seconds: float) -> Act:
    """Let an operator allow no automatic plan for a time."""

    def act(home: House, group: ScriptedGroup) -> None:
        request = admin_pb2.FreezeRequest(act=home.act(group.name, "night"), seconds=seconds)
        home.admin.Freeze(request, timeout=CALL_S)

    return act


def want_plans(home: House, group: ScriptedGroup) -> None:
    """Let every automatic cycle of the deployment draw a plan."""
    values = {"gates.trigger_imbalance": "1.0", "gates.trigger_worst_layer": "1.0"}
    act = home.act(group.name, "plan whatever comes")
    home.admin.SetConfig(admin_pb2.SetConfigRequest(act=act, values=values), timeout=CALL_S)


def overflow_halt_and_freeze(home: House, group: ScriptedGroup) -> None:
    """Three things at once that have nothing to do with each other."""
    group.faults.overflow = 5
    freeze(3600.0)(home, group)
    halt(home, group)


def make_room_resume_and_unfreeze(home: House, group: ScriptedGroup) -> None:
    """The end of all three."""
    group.faults.overflow = 0
    resume(home, group)
    freeze(0.0)(home, group)


TROUBLES = (
    Trouble("skewed", ("EplbImbalanceHigh",), nothing, apply, SLOPED),
    Trouble(
        "mute",
        ("EplbReportsMissing",),
        fault(mute=frozenset({1})),
        fault(mute=frozenset[int]()),
        EVEN,
        labels=(("rank", "1"),),
    ),
    Trouble(
        "lying",
        ("EplbReportsRejected",),
        fault(lies=True),
        fault(lies=False),
        EVEN,
        labels=(("reason", "sent_total"),),
    ),
    Trouble(
        "troubled",
        ("EplbOverflow", "EplbHalted", "EplbFreezeForgotten"),
        overflow_halt_and_freeze,
        make_room_resume_and_unfreeze,
        EVEN,
    ),
    Trouble("away", ("EplbRankAway", "EplbSingleReplicaAtRisk"), hang_up, come_back, EVEN),
    Trouble(
        "unheard",
        ("EplbEpochsApart", "EplbMigrationStuck"),
        lose_cutovers_of_a_rank,
        find_all_words,
        SLOPED,
    ),
    Trouble(
        "spoiled",
        ("EplbDigestMismatch", "EplbPlansFailing"),
        spoil_transfers,
        fault(spoils=False),
        SLOPED,
        again=try_again,
    ),
    Trouble("turned", ("EplbPlanNotEffective",), turn_after_the_plan, take_back, SLOPED),
    Trouble("unplanned", ("EplbPlannerSilent",), want_plans, nothing, SLOPED),
)
"""The last one needs `planners_dying`, with which no other can draw a plan."""
ROLLED_BACK = TROUBLES[-2]
"""Its plan is taken back, which is what thrash looks like."""


@contextmanager
def planners_dying(home: House) -> Generator[None]:
    """Kill every planner process of the controller, as a machine without memory does."""
    is_over = Event()

    def hunt() -> None:
        while not is_over.wait(0.1):
            kill_children(home.pid, "multiprocessing.spawn")

    thread = Thread(target=hunt, name="hunt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(10)
