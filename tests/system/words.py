"""What the supervisor and the rank processes say to each other."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grant:
    """Steps below this number may be served; the same for all ranks."""

    until: int


@dataclass(frozen=True, slots=True)
class HoldRounds:
    """Whether the rank's mover keeps to itself that a transfer round is over."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class LoseArms:
    """Whether every Arm is lost on its way to the rank."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class FreezeAgent:
    """Whether the rank's agent is stopped in the middle of its loop."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class TellCounts:
    """Ask for Counted."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End; every rank has served all granted steps."""


Command = Grant | HoldRounds | LoseArms | FreezeAgent | TellCounts | Stop


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One step of one rank."""

    step: int
    seconds: float
    """Hook and forward."""
    hook_seconds: float
    """before_step alone."""
    error: float
    """Of the outputs, relative."""
    num_tokens: int
    epoch: int
    is_migrating: bool
    is_halted: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that a rank has served; none, once it is attached."""

    rank: int
    seen: tuple[StepSeen, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a rank counted since its start; lists are [L][E]."""

    rank: int
    sent: list[list[int]]
    received: list[list[int]]
    tokens: int
    dummy_steps: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank could not go on."""

    rank: int
    text: str


Report = Steps | Counted | Failed
