"""Adding verbs to a command line, each with its help, an example and the shared options."""

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NoReturn

from eplb_service.cli.client import Client
from eplb_service.cli.contexts import CONTEXT_VARIABLE
from eplb_service.cli.endpoints import DEFAULT_ENDPOINT, endpoint
from eplb_service.cli.ends import Answer
from eplb_service.cli.keys import VARIABLES
from eplb_service.cli.options import ENDPOINT_VARIABLE, Options, Output, duration

Verb = Callable[[Client, Options, Namespace], Answer]


SHARED_TITLE = "options of all verbs"


class Adder:
    """Adds verbs that all know the shared options, and remembers those that do something."""

    def __init__(
        self,
        add_parser: Callable[..., ArgumentParser],
        shared: ArgumentParser,
        verbs: list[ArgumentParser],
    ) -> None:
        self._add_parser, self._shared, self._verbs = add_parser, shared, verbs

    def __call__(self, name: str, verb: Verb, about: str, example: str) -> ArgumentParser:
        """Add a verb with its help."""
        parser = self._made(name, about, example)
        parser.set_defaults(verb=verb, named=parser.prog)
        self._verbs.append(parser)
        return parser

    def act(self, name: str, verb: Verb, about: str, example: str) -> ArgumentParser:
        """Add a verb that changes something."""
        parser = self(name, verb, about, example)
        parser.add_argument("--reason", default="", help="why, for the history")
        parser.add_argument(
            "--request-id", metavar="ID", help="act once under this id (default: a new one)"
        )
        return parser

    def group(self, name: str, about: str, example: str) -> "Adder":
        """Add a verb that has verbs of its own."""
        parser = self._made(name, about, example)
        verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
        return Adder(verbs.add_parser, self._shared, self._verbs)

    def _made(self, name: str, about: str, example: str) -> ArgumentParser:
        return self._add_parser(
            name,
            help=about,
            parents=[self._shared],
            description=f"{about[:1].upper()}{about[1:]}.",
            epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )


def offer_wait(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage] - argparse names it no other way
    """Let a command wait for the plan that it starts."""
    parser.add_argument("--wait", action="store_true", help="wait until the plan is over")


def top_parser(
    name: str, *, parents: list[ArgumentParser], description: str, epilog: str
) -> ArgumentParser:
    """Make the parser that the verbs hang on."""
    return _Parser(
        prog=name,
        parents=parents,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


class _Parser(ArgumentParser):
    """Says more of what it does not understand; its verbs' parsers are of this kind too."""

    def error(self, message: str) -> NoReturn:
        """Complain and exit."""
        if message.endswith("expected one argument"):
            option = message.removeprefix("argument ").partition(":")[0].rpartition("/")[2]
            message = f"{message}; a value that begins with '-' is written {option}=VALUE"
        super().error(message)


def shared_options() -> ArgumentParser:
    """Options that may stand before the verb or after it."""
    shared = ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    options = shared.add_argument_group(SHARED_TITLE)
    options.add_argument(
        "--endpoint",
        type=endpoint,
        metavar="HOST:PORT",
        help=f"the controller (default: {ENDPOINT_VARIABLE}, else the context's, else "
        f"{DEFAULT_ENDPOINT})",
    )
    options.add_argument(
        "--context",
        metavar="NAME",
        help=f"a controller by name; see `eplbctl context` (default: {CONTEXT_VARIABLE}, else the "
        "current one)",
    )
    options.add_argument(
        "--deployment", metavar="NAME", help="which deployment (default: the only one there is)"
    )
    options.add_argument(
        "-o",
        "--output",
        choices=[str(output) for output in Output],
        metavar="FORMAT",
        help="table for people (default), json or yaml with stable keys for machines",
    )
    options.add_argument(
        "--timeout",
        type=duration,
        metavar="TIME",
        help="longest to wait for the whole command, e.g. 10s (default: 30s; 10m with --wait)",
    )
    _add_keys(options)
    return shared


def _add_keys(options: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage] - argparse names it no other way
    for name, what in (
        ("ca", "authority of the controller's certificate; turns TLS on"),
        ("certificate", "your certificate"),
        ("key", "its key"),
        ("token-file", "file with your token"),
    ):
        variable = VARIABLES[name.replace("-", "_")]
        options.add_argument(f"--{name}", metavar="FILE", help=f"{what} (default: {variable})")
    options.add_argument(
        "--server-name",
        metavar="NAME",
        help="name in the controller's certificate (default: the endpoint's host)",
    )
    options.add_argument("--insecure", action="store_true", help="ask another machine without TLS")
