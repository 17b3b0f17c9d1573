"""eplbctl: answers go to stdout, complaints to stderr, and the exit code says how it went."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from eplb_service.cli.adder import Verb
from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, Exit, Failure, invalid
from eplb_service.cli.options import Options, Output
from eplb_service.cli.parser import build_parser
from eplb_service.cli.plain import as_json, as_yaml
from eplb_service.domain.errors import EplbError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        options = Options.of(args)
        answer = _run(args, options)
        print(_written(answer, options.output))
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
    if answer.complaint:
        print(answer.complaint, file=sys.stderr)
    return answer.exit


def _run(args: Namespace, options: Options) -> Answer:
    verb: Verb = args.verb
    with Client(options.endpoint, timeout_s=options.timeout_s) as client:
        return verb(client, options, args)


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
