"""How a command ends: what it answers, how it fails, and with which exit code."""

from dataclasses import dataclass
from enum import IntEnum

import grpc

from eplb_service.cli.plain import Plain


class Exit(IntEnum):
    """Exit codes of eplbctl."""

    DONE = 0
    """Done, or nothing to do."""
    FAILED = 1
    """Failed, or not found."""
    INVALID = 2
    """The input makes no sense."""
    REFUSED = 3
    """The state does not allow it: frozen, overtaken, no leader."""
    NOT_ALLOWED = 4
    NO_ANSWER = 5
    """Out of time, or unreachable."""
    WOULD_CHANGE = 10
    """With --exit-code: the plan would change something."""
    INTERRUPTED = 130


WORDS = {
    Exit.FAILED: "failed",
    Exit.INVALID: "invalid",
    Exit.REFUSED: "refused",
    Exit.NOT_ALLOWED: "not allowed",
    Exit.NO_ANSWER: "no answer",
}

_Status = grpc.StatusCode
_BY_STATUS = {
    _Status.INVALID_ARGUMENT: Exit.INVALID,
    _Status.OUT_OF_RANGE: Exit.INVALID,
    _Status.FAILED_PRECONDITION: Exit.REFUSED,
    _Status.ABORTED: Exit.REFUSED,
    _Status.PERMISSION_DENIED: Exit.NOT_ALLOWED,
    _Status.UNAUTHENTICATED: Exit.NOT_ALLOWED,
    _Status.UNAVAILABLE: Exit.NO_ANSWER,
    _Status.DEADLINE_EXCEEDED: Exit.NO_ANSWER,
}
_BY_CODE = {
    "plan_rejected": Exit.FAILED,
    "not_leader": Exit.REFUSED,
    "too_many_requests": Exit.REFUSED,
}
"""Where the stable code says more than the status."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb answers."""

    text: str
    """For people."""
    tree: Plain
    """The same facts for machines."""
    exit: Exit = Exit.DONE
    complaint: str = ""
    """For stderr, beside an answer that is not what was hoped for."""


class Failure(Exception):
    """A verb could not do what it was asked for."""

    def __init__(self, code: Exit, text: str, *, word: str = "") -> None:
        self.exit = code
        self.word = word or WORDS[code]
        super().__init__(text)


class Elsewhere(Failure):
    """Another controller has the deployment; nothing was done."""

    def __init__(self, text: str, *, endpoint: str) -> None:
        self.endpoint = endpoint
        super().__init__(Exit.REFUSED, text)


class Unanswered(Failure):
    """Nobody answered, or nobody who may just now; asked again, one may."""


class Misfit(Failure):
    """Somebody answers, but the keys are not for them; nothing was asked."""

    def __init__(self, text: str) -> None:
        super().__init__(Exit.NOT_ALLOWED, text)


class Absent(Failure):
    """The deployment is not known."""


def invalid(text: str) -> Failure:
    """Build the failure of input that makes no sense."""
    return Failure(Exit.INVALID, text)


def exit_of(status: grpc.StatusCode, code: str) -> Exit:
    """Return the exit code for a refusal.

    code    the stable code of the controller's failure, empty where it named none
    """
    return _BY_CODE.get(code) or _BY_STATUS.get(status, Exit.FAILED)
