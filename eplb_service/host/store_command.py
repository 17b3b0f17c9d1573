"""`eplb-service store`: backup and restore of the store that the settings name."""

import argparse
import getpass
from collections.abc import Callable
from functools import partial
from pathlib import Path

from eplb_service.settings.sources import load_settings
from eplb_service.store.backups import back_up, restore
from eplb_service.store.copying import Copied, Restoring

Say = Callable[[str], None]
Work = Callable[[argparse.Namespace], tuple[str, Copied]]


def add_store_command(command: argparse.ArgumentParser, say: Say) -> None:
    """Fill in the parser of `store`; each act leaves itself as `act` and tells by `say`."""
    acts = command.add_subparsers(required=True, metavar="ACT")
    for name, work, text in (
        ("backup", _backup, "write the store into a new file, also while a controller runs"),
        ("restore", _restore, "replace what the store holds by a backup; no controller may run"),
    ):
        example = f"example: eplb-service store {name} eplb.backup --config settings.yaml"
        act = acts.add_parser(name, help=text, description=text, epilog=example)
        act.add_argument("file", type=Path, metavar="FILE")
        act.add_argument("--config", type=Path, help="YAML or JSON file of settings")
        if name == "restore":
            act.add_argument(
                "--force", action="store_true", help="replace data that the store holds"
            )
        act.set_defaults(act=partial(_run, work, say))


def _run(work: Work, say: Say, args: argparse.Namespace) -> int:
    done, copied = work(args)
    chain = f"broken: {copied.chain_break}" if copied.chain_break else "the chain holds"
    say(done)
    say(f"deployments  {', '.join(copied.deployments) or 'none'}")
    say(f"audit        {copied.num_audited} entries, {chain}")
    return 0


def _backup(args: argparse.Namespace) -> tuple[str, Copied]:
    settings = load_settings(args.config)
    return f"backed up to {args.file}", back_up(settings.store.url, args.file)


def _restore(args: argparse.Namespace) -> tuple[str, Copied]:
    settings = load_settings(args.config)
    restoring = Restoring(
        args.file, _user(), is_forced=args.force, watch_s=settings.leading.takeover_s
    )
    return f"restored from {args.file}", restore(settings.store.url, restoring)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown user"
