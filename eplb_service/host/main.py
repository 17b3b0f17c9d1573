"""`eplb-service`: starts the placement controller, on Ray or as a plain process.

eplb-service up                      on a local Ray that this command starts, until Ctrl-C
eplb-service up --address HOST:PORT  as a detached actor on a Ray cluster, then returns
eplb-service up --address ... --keep the same, and stays: starts the actor again should it be gone
eplb-service run                     without Ray, until Ctrl-C
eplb-service down --address ...      ends the detached actor
eplb-service store backup FILE       copies the store, also while a controller runs
eplb-service store restore FILE      puts a copy in the store's place
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from eplb_service.domain.errors import (
    DeadlineExceeded,
    EplbError,
    InvalidRequest,
    InvalidSettings,
    NotLeader,
    StoreConflict,
)
from eplb_service.host.assembly import Addresses, Service
from eplb_service.host.logs import log_events
from eplb_service.host.planner_process import ProcessPlanRunner
from eplb_service.host.store_command import add_store_command
from eplb_service.settings.settings import Settings
from eplb_service.settings.sources import load_settings

if TYPE_CHECKING:
    from eplb_service.host.ray_cluster import Place

OK, FAILED, INVALID, WRONG_STATE, UNREACHABLE = 0, 1, 2, 3, 5
STOPPERS = (signal.SIGINT, signal.SIGTERM)
NAME, NAMESPACE = "eplb-controller", "eplb"
EXAMPLES = {
    "up": "eplb-service up --address HEAD:6379 --resource eplb_controller --config settings.yaml",
    "run": "eplb-service run --config settings.yaml",
    "down": "eplb-service down --address HEAD:6379",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = service_parser().parse_args(argv)
    act: Callable[[argparse.Namespace], int] = args.act
    try:
        return act(args)
    except (InvalidSettings, InvalidRequest) as wrong:
        return _complain(wrong, INVALID)
    except (NotLeader, StoreConflict) as fenced:
        return _complain(fenced, WRONG_STATE)
    except DeadlineExceeded as late:
        return _complain(late, UNREACHABLE)
    except EplbError as failed:
        return _complain(failed, FAILED)


def service_parser() -> argparse.ArgumentParser:
    """Return the parser of `eplb-service`; each command leaves itself as `act`."""
    parser = argparse.ArgumentParser(
        prog="eplb-service", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, act, text in (
        ("up", _up, "start the controller as a Ray actor"),
        ("run", _run, "run the controller in this process, without Ray"),
        ("down", _down, "end a detached controller actor"),
    ):
        example = f"example: {EXAMPLES[name]}"
        command = commands.add_parser(name, help=text, description=text, epilog=example)
        command.set_defaults(act=act)
        if name != "down":
            command.add_argument("--config", type=Path, help="YAML or JSON file of settings")
        if name != "run":
            command.add_argument(
                "--address", default="local", help="Ray cluster, or local (default)"
            )
            command.add_argument("--name", default=NAME, help="actor name (default %(default)s)")
            command.add_argument(
                "--namespace", default=NAMESPACE, help="Ray namespace (default %(default)s)"
            )
        if name == "up":
            command.add_argument(
                "--wait", type=float, default=60.0, help="seconds to wait until it leads"
            )
            command.add_argument(
                "--resource", default="", help="custom Ray resource of the nodes it may run on"
            )
            command.add_argument(
                "--keep",
                action="store_true",
                help="stay, start the actor again should it be gone, and replace it where its\n"
                "settings differ; for a supervisor such as systemd or Kubernetes",
            )
    store = commands.add_parser("store", help="back the store up, or restore it")
    add_store_command(store, print)
    return parser


def _run(args: argparse.Namespace) -> int:
    log_events()
    settings = load_settings(args.config)
    return asyncio.run(_run_until_stopped(settings))


async def _run_until_stopped(settings: Settings) -> int:
    life = _Life(settings)
    task = asyncio.create_task(life.lead())
    loop = asyncio.get_running_loop()
    for number in STOPPERS:
        loop.add_signal_handler(number, life.end, task)
    with suppress(asyncio.CancelledError):
        await task
    return OK


class _Life:
    """Leads until it is told to end; told twice, or while it does not lead, it ends at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._service: Service | None = None

    async def lead(self) -> None:
        """Lead until told to end, or fenced; one that stands by then does so again."""
        while True:
            self._service = Service(self._settings, ProcessPlanRunner())
            try:
                await self._service.run(_announce)
            except NotLeader as fenced:
                if not self._settings.leading.is_standby:
                    raise
                _complain(fenced, WRONG_STATE)
            else:
                return

    def end(self, task: "asyncio.Task[None]") -> None:
        """Let the service leave; cancel the task where it does not, or leaves already."""
        if self._service is None or not self._service.leave():
            task.cancel()


def _up(args: argparse.Namespace) -> int:
    # Only the commands that need Ray wait for its import.
    from eplb_service.host import ray_cluster  # noqa: PLC0415 -- Ray only where asked for

    settings = load_settings(args.config)
    is_local = args.address == ray_cluster.LOCAL
    if is_local and args.keep:
        raise InvalidSettings(
            "--keep is for a Ray cluster that outlives this command; name it with --address. "
            "Nothing was started"
        )
    if not is_local:
        ray_cluster.require_durable(settings)
    place = ray_cluster.Place(args.name, args.namespace, args.resource)
    ray_cluster.connect(args.address, args.namespace)
    if args.keep:
        return _keep(settings, place, wait_s=args.wait)
    if not is_local:
        _announce(ray_cluster.start(settings, place, wait_s=args.wait))
        return OK
    _interrupt_by(signal.SIGTERM)  # Ray has a handler of its own, which leaves without a clean-up
    try:
        _announce(ray_cluster.start(settings, place, wait_s=args.wait))
        print("Ctrl-C ends the controller and this local Ray", flush=True)
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return OK
    finally:
        for number in STOPPERS:  # a second Ctrl-C must not stop the clean-up
            signal.signal(number, signal.SIG_IGN)
        ray_cluster.end(place)
        ray_cluster.leave()


def _keep(settings: Settings, place: "Place", *, wait_s: float) -> int:
    """Keep the actor until told to end; the actor itself stays.

    Once fenced it stands aside and does not end: a supervisor would start it anew, and the
    two controllers would fence each other in turn.
    """
    from eplb_service.host.keeper import Keeper  # noqa: PLC0415 -- as for Ray

    log_events()
    _interrupt_by(signal.SIGTERM)
    with suppress(KeyboardInterrupt):
        try:
            Keeper(settings, place, wait_s=wait_s).keep(_announce)
        except NotLeader as fenced:
            _complain(fenced, WRONG_STATE)
            print("the keeper stands aside; start it anew if its controller is to lead", flush=True)
            while True:
                signal.pause()
    return OK


def _interrupt_by(number: signal.Signals) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(number, interrupt)


def _down(args: argparse.Namespace) -> int:
    from eplb_service.host import ray_cluster  # noqa: PLC0415 -- Ray only where asked for

    ray_cluster.connect(args.address, args.namespace)
    if ray_cluster.end(ray_cluster.Place(args.name, args.namespace)):
        print(f"ended actor {args.name}")
    else:
        print(f"no actor {args.name} in namespace {args.namespace}; nothing to do")
    return OK


def _announce(found: Addresses) -> None:
    print(f"controller   {found.endpoint}   metrics {found.metrics_url}   pid {found.pid}")
    print(f"try          eplbctl --endpoint {found.endpoint} status", flush=True)


def _complain(error: EplbError, code: int) -> int:
    print(f"{error.code}: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
