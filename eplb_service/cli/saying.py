"""Writing answers to where somebody reads them."""

import os
import sys

from eplb_service.cli.ends import Exit, Failure

UNWRITTEN = "the answer cannot be written"
CARRIED_OUT = "the command itself was carried out"


def say(text: str) -> None:
    """Write an answer through to its reader; raises Failure, or BrokenPipeError."""
    if sys.stdout is None:  # so it is with >&-
        raise Failure(Exit.FAILED, f"{UNWRITTEN}: standard output is closed; {CARRIED_OUT}")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer would fail again, and louder, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Failure(Exit.FAILED, f"{UNWRITTEN}: {error.strerror}; {CARRIED_OUT}") from error
