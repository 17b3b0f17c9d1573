"""eplbctl: answers go to stdout, complaints to stderr, and the exit code says how it went."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from eplb_service.cli.adder import Verb
from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, Elsewhere, Exit, Failure, invalid
from eplb_service.cli.options import Options, Output
from eplb_service.cli.parser import parsed
from eplb_service.cli.plain import as_json, as_yaml
from eplb_service.cli.saying import say
from eplb_service.domain.errors import EplbError
from eplb_service.domain.variables import misspelt

MOST_HOPS = 3
"""Controllers that one command asks, each named by the one before."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        return _carried_out(words)
    except Failure as failure:
        print(f"{failure.word}: {failure}", file=sys.stderr)
        return failure.exit
    except EplbError as error:
        print(f"failed: {error.code}: {error}", file=sys.stderr)
        return Exit.FAILED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our answer has gone; there is nobody to tell
        return Exit.FAILED
    except KeyboardInterrupt:
        print("interrupted; what the controller has begun goes on", file=sys.stderr)
        return Exit.INTERRUPTED


def _carried_out(words: Sequence[str]) -> int:
    _require_text(words)
    try:
        args = parsed(words)
    except SystemExit as end:
        say("")
        return int(end.code or 0)
    _require_known_variables()
    options = Options.of(args)
    answer = _run(args, options)
    if answer.text:
        say(f"{_written(answer, options.output)}\n")
    if answer.complaint:
        print(answer.complaint, file=sys.stderr)
    return answer.exit


def _require_text(words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise invalid(f"{word!a} is no text in UTF-8; nothing was asked") from error


def _require_known_variables() -> None:
    if unknown := misspelt(os.environ):
        raise invalid(f"{'; '.join(unknown)}. Nothing was asked")


def _run(args: Namespace, options: Options) -> Answer:
    verb: Verb = args.verb
    endpoint = options.endpoint
    for _ in range(MOST_HOPS):
        with Client(endpoint, timeout_s=options.timeout_s, keys=options.keys) as client:
            try:
                return verb(client, options, args)
            except Elsewhere as told:
                endpoint = told.endpoint
    raise Failure(
        Exit.REFUSED,
        f"controllers name one another for this deployment, at last {endpoint}; their directories "
        "differ, nothing was done",
    )


def _written(answer: Answer, output: Output) -> str:
    match output:
        case Output.TABLE:
            return answer.text
        case Output.JSON:
            return as_json(answer.tree)
        case Output.YAML:
            return _yaml(answer)


def _yaml(answer: Answer) -> str:
    try:
        return as_yaml(answer.tree)
    except ModuleNotFoundError as error:
        raise invalid(
            "yaml needs PyYAML, which comes with the extra `service`; -o json needs nothing. "
            "The command itself was carried out"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
