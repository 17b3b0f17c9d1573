"""Completion of the command line in a shell."""

from argparse import Namespace

from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, invalid
from eplb_service.cli.options import Options

SHELLS = ("bash", "zsh", "tcsh")


def completion(client: Client, options: Options, args: Namespace) -> Answer:
    """Print a script that a shell reads to complete verbs and options."""
    del client, options
    try:
        import shtab  # noqa: PLC0415 -- not on the base install
    except ModuleNotFoundError as error:
        raise invalid("completion needs shtab, which comes with the extra `service`") from error
    script = shtab.complete(args.parser(), shell=args.shell)
    return Answer(script.rstrip("\n"), {"shell": args.shell, "script": script})
