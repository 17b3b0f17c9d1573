"""What happened, line by line, and what must never happen.

The transcript is a function of the seed alone: no addresses, no times, no unordered sets.
"""

from eplb_service.domain.wave import Order
from eplb_service.protocol.messages import (
    Abort,
    Arm,
    Halted,
    Hello,
    Idle,
    NewShares,
    Resume,
    SharesApplied,
    ToMachine,
    Word,
)


class Violation(Exception):
    """An invariant broke; the text says which, the transcript how."""


class Story:
    """The transcript of one run."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def tell(self, line: str) -> None:
        """Add one numbered line."""
        self._lines.append(f"{len(self._lines):4} {line}")

    def text(self, *, last: int | None = None) -> str:
        """Return the transcript, or its last lines."""
        return "\n".join(self._lines[-last:] if last else self._lines)


def describe(word: Hello | Word | ToMachine) -> str:
    """Name a word in a few letters, with what identifies it."""
    match word:
        case Hello():
            status = word.status
            held = f" holds {status.held.epoch} {status.phase}" if status.held else ""
            return f"Hello(inc {word.incarnation} epoch {status.served.epoch}{held})"
        case Order():
            return f"Order({word.epoch} gen {word.generation} exp {word.expires_at_step})"
        case NewShares():
            return f"NewShares({word.name.epoch}.{word.name.revision} gen {word.generation})"
        case Arm() | Abort():
            return f"{type(word).__name__}({word.wave.epoch} gen {word.generation})"
        case Resume():
            return f"Resume({word.halt_number} gen {word.generation})"
        case Halted():
            return f"Halted({word.halt.number} {'on' if word.halt.is_active else 'off'})"
        case Idle():
            return f"Idle({word.is_idle})"
        case SharesApplied():
            return f"SharesApplied({word.shares.epoch}.{word.shares.revision})"
        case _:
            reason = getattr(word, "reason", "")
            return f"{type(word).__name__}({word.wave.epoch}{f' {reason}' if reason else ''})"
