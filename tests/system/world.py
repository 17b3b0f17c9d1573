"""A controller, a street and a rank group, in real processes."""

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median

from tests.system.controller import SERVICE, ControllerProcess, Operator
from tests.system.group import Group, seconds_of
from tests.system.proxy import Proxy
from tests.system.rank import NUM_RANKS
from tests.system.words import StepSeen

HELD_RANK = 2
"""The rank that stages late, or never, where one does."""


class World:
    """All of it; `close` ends every process, whatever happened.

    store    the controller's file; None: one in `folder`
    hosts    [N] loopback addresses at which each rank finds its own way to the controller
    main     module of the controller's program
    """

    def __init__(
        self,
        folder: Path,
        verb: str = "run",
        *,
        store: Path | None = None,
        hosts: Sequence[str] = ("127.0.0.1",) * NUM_RANKS,
        main: str = SERVICE,
    ) -> None:
        self.controller = ControllerProcess(folder, verb, store=store, main=main)
        self.proxies = [Proxy(("127.0.0.1", self.controller.port), host) for host in hosts]
        self.operator = Operator(self.controller.port)
        self.group: Group | None = None
        try:
            self.controller.start()
            self.ranks = self.start_ranks()
        except BaseException:
            self.close()
            raise

    def start_ranks(self, *, older: Collection[int] = ()) -> Group:
        """Start a new group, some ranks a release older; it takes the place of one that ended."""
        endpoints = [proxy.endpoint for proxy in self.proxies]
        self.ranks = self.group = Group(endpoints, older=older)
        return self.ranks

    def lead_to(self, controller: ControllerProcess) -> None:
        """Let everybody find another controller, which is up."""
        self.operator.close()
        self.controller, self.operator = controller, Operator(controller.port)
        for proxy in self.proxies:
            proxy.retarget(("127.0.0.1", controller.port))

    def hold_wave(self) -> None:
        """Bring a wave to the middle of its staging, not the first: all ranks but one are done."""
        if not self.ranks.epoch:
            self.settle_another()
        self.ranks.hold_rounds(HELD_RANK, is_on=True)
        self.operator.move()
        self.await_all_but_one("staged", "accepted")

    def calm_down(self) -> None:
        """Serve on until nothing runs and every rank is heard."""
        operator = self.operator
        self.ranks.serve_until(
            operator.is_calm, within_steps=4000, what="calm", instead=operator.status
        )

    def await_all_but_one(self, rest: str, one: str) -> None:
        """Serve on until HELD_RANK stands at phase `one`, and the others at `rest`."""
        wanted = [one if rank == HELD_RANK else rest for rank in range(NUM_RANKS)]
        self.ranks.serve_until(
            lambda: [rank.phase for rank in self.operator.status().ranks] == wanted,
            within_steps=400,
            what=f"phases {wanted}",
        )

    def settle_another(self) -> None:
        """A plan drawn now is carried out."""
        self.calm_down()
        before = self.ranks.epoch
        self.operator.move()
        self.calm_down()
        assert self.operator.status().operation.running.phase == "done"
        assert self.ranks.epoch > before

    def close(self) -> None:
        """End everything."""
        if self.group is not None:
            self.group.kill()
        self.controller.kill()
        for proxy in self.proxies:
            proxy.close()
        self.operator.close()


LATE = 5
"""A step is late beyond so many medians of the paired steps."""


def require_no_step_waited(
    during: Sequence[Sequence[StepSeen]], paired: Sequence[Sequence[StepSeen]]
) -> None:
    """Compare steps while something was broken with as many before: nothing waited for it.

    A step that waits for what is broken waits until it is mended, or for a time-out; this is
    told from the noise of a busy machine by comparing, not by any time of its own.
    """
    broken, whole = seconds_of(during), seconds_of(paired)
    limit = LATE * median(whole)
    late = [sum(one > limit for one in steps) for steps in (broken, whole)]
    told = (
        f"median {median(broken):.4f} s, paired {median(whole):.4f} s; late {late[0]}, paired "
        f"{late[1]}; slowest {max(broken):.4f} s, paired {max(whole):.4f} s"
    )
    assert median(broken) <= 2 * median(whole), told
    assert late[0] <= late[1] + len(broken) // 20, told
    assert max(broken) <= 2 * LATE * max(whole), told
