"""Every failure the runtime can name.

What an exchange refuses is in `exchange_errors`.

    MoeError
      ImpossibleRouting     selector settings that no input can satisfy
      ImpossibleActivation  parameters with which an activation has no meaning
      UnknownActivation     a name that no activation has
      MissingTokenIds       the model routes by token ids and the batch brings none
      TokenIdOutOfRange     a token id for which the model's routing table has no row
      BadChoice             something chose experts that no token can be sent to
      ShapeMismatch         a tensor does not have the shape its place demands
      UnplacedExpert        a token chose an expert for which the table names no slot
      BadTable              a dispatch table names a slot that cannot serve the expert
      BadInstall            an install names a slot or staging row that does not exist
      EmptySlotReached      tokens arrived at a slot that holds no expert
      StaleTable            tokens arrived at a slot that holds another expert than they want
      Unsupported           a device cannot honour all that a model asks for
      UnreadableRows        rows arrived in a form that the experts' format does not read
      MomentMissed          work waits for a moment of the routed part that was never marked
      DummyStepWithTokens   a dummy step brought token rows
      NoGradients           tokens or logits want a gradient, which nothing here computes
      StepsOverlap          a step, or a change, while another one is going on
      ExchangeFailed        a collective of the exchange did not complete

`code` is stable: it is logged and counted. The text is for people.
"""

from collections.abc import Sequence
from typing import ClassVar

__all__ = [
    "BadChoice",
    "BadInstall",
    "BadTable",
    "DummyStepWithTokens",
    "EmptySlotReached",
    "ExchangeFailed",
    "ImpossibleActivation",
    "ImpossibleRouting",
    "MissingTokenIds",
    "MoeError",
    "MomentMissed",
    "NoGradients",
    "ShapeMismatch",
    "StaleTable",
    "StepsOverlap",
    "TokenIdOutOfRange",
    "UnknownActivation",
    "UnplacedExpert",
    "UnreadableRows",
    "Unsupported",
    "require_type",
]


class MoeError(Exception):
    """Root of all that the runtime raises on purpose."""

    code: ClassVar[str] = "moe_error"


class ImpossibleRouting(MoeError):
    """Selector settings that no input can satisfy."""

    code = "impossible_routing"


class ImpossibleActivation(MoeError):
    """Parameters with which an activation has no meaning."""

    code = "impossible_activation"


class UnknownActivation(MoeError):
    """A name that no activation has."""

    code = "unknown_activation"

    def __init__(self, name: str, *, known: Sequence[str]) -> None:
        self.name = name
        super().__init__(
            f"no activation is called {name!r}, expected one of {', '.join(known)}; "
            "the model was not built, since a wrong activation would go unseen"
        )


class MissingTokenIds(MoeError):
    """The model routes by token ids, and the batch brings none."""

    code = "missing_token_ids"

    def __init__(self, *, num_rows: int) -> None:
        self.num_rows = num_rows
        super().__init__(
            f"the model chooses experts by token ids, but the batch brings {num_rows} rows without "
            "any; the step was not started"
        )


class TokenIdOutOfRange(MoeError):
    """A token id for which the model's routing table has no row."""

    code = "token_id_out_of_range"

    def __init__(self, *, ids: Sequence[int], vocabulary: int) -> None:
        self.ids, self.vocabulary = tuple(ids), vocabulary
        super().__init__(
            f"token ids {list(ids)} have no row in the routing table, expected 0 to "
            f"{vocabulary - 1} in every row that is a token; the step was not started"
        )


class BadChoice(MoeError):
    """Something chose experts that no token can be sent to."""

    code = "bad_choice"

    def __init__(self, who: str, *, reason: str) -> None:
        self.who = who
        super().__init__(f"{who} {reason}; the step cannot be computed and stops here")


class ShapeMismatch(MoeError):
    """A tensor does not have the shape that its place demands."""

    code = "shape_mismatch"

    def __init__(self, what: str, *, got: Sequence[int], expected: str) -> None:
        self.what, self.got, self.expected = what, tuple(got), expected
        super().__init__(f"{what} has shape {tuple(got)}, expected {expected}; nothing was changed")


def require_type(what: str, given: object, wanted: tuple[type, ...], *, of: str) -> None:
    """Raise ShapeMismatch for what is of none of some types: a word or a number in its place."""
    if not isinstance(given, wanted):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise ShapeMismatch(
            f"{what} {given!r}, of type {type(given).__name__},", got=(), expected=f"a {names} {of}"
        )


class UnplacedExpert(MoeError):
    """A token chose an expert for which this rank's dispatch table names no slot."""

    code = "unplaced_expert"

    def __init__(self, *, layer: int, experts: Sequence[int]) -> None:
        self.layer, self.experts = layer, tuple(experts)
        super().__init__(
            f"layer {layer}: tokens chose experts {list(experts)}, but the dispatch table names no "
            "slot for them; the step cannot be computed and stops here"
        )


class BadTable(MoeError):
    """A dispatch table names a slot that does not exist or holds another expert."""

    code = "bad_table"

    def __init__(self, *, layer: int, reason: str) -> None:
        self.layer = layer
        super().__init__(f"layer {layer}: {reason}; the table in use was kept")


class BadInstall(MoeError):
    """An install names a slot or a staging row that does not exist, or one of them twice."""

    code = "bad_install"

    def __init__(self, *, layer: int, reason: str) -> None:
        self.layer = layer
        super().__init__(f"layer {layer}: {reason}; no slot was changed")


class EmptySlotReached(MoeError):
    """Tokens arrived at a slot that holds no expert: some rank's table is wrong."""

    code = "empty_slot_reached"

    def __init__(self, *, layer: int, rank: int, local_slots: Sequence[int]) -> None:
        self.layer, self.rank, self.local_slots = layer, rank, tuple(local_slots)
        super().__init__(
            f"layer {layer}, rank {rank}: tokens arrived at local slots {list(local_slots)}, which "
            "are empty; a dispatch table of some rank is wrong and the step stops here"
        )


class StaleTable(MoeError):
    """Tokens arrived for an expert that their slot does not hold: the sender's table is stale."""

    code = "stale_table"

    def __init__(
        self, *, layer: int, rank: int, wrong: Sequence[tuple[int, int, int, int]]
    ) -> None:
        self.layer, self.rank, self.wrong = layer, rank, tuple(wrong)
        told = "; ".join(
            f"rank {source} takes local slot {slot} for "
            f"{'several experts' if claimed < 0 else f'expert {claimed}'}, it holds {held}"
            for source, slot, claimed, held in self.wrong
        )
        super().__init__(
            f"layer {layer}, rank {rank}: {told}; dispatch tables are stale and the step stops here"
        )


class UnreadableRows(MoeError):
    """Rows arrived in a form that the experts' format does not read."""

    code = "unreadable_rows"

    def __init__(self, form: str, *, weights: str) -> None:
        super().__init__(
            f"rows arrived {form}, but the experts here are {weights} and do not read them; "
            "the dispatch was built for another format and the step stops here"
        )


class Unsupported(MoeError):
    """A device cannot honour all that a model asks for."""

    code = "unsupported"

    def __init__(self, what: str, *, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"cannot serve {what}: {'; '.join(reasons)}; nothing was loaded")


class MomentMissed(MoeError):
    """Work beside the routed part waits for a moment that was never marked."""

    code = "moment_missed"

    def __init__(self, moment: str, *, marked: Sequence[str]) -> None:
        self.moment = moment
        super().__init__(
            f"work beside routed experts waits for {moment!r}, but only {list(marked)} were "
            "reached; on a device it would never go on, so the step stops here"
        )


class DummyStepWithTokens(MoeError):
    """A dummy step keeps the collectives going and brings no tokens of its own."""

    code = "dummy_step_with_tokens"

    def __init__(self, *, rank: int, num_rows: int) -> None:
        self.rank, self.num_rows = rank, num_rows
        super().__init__(
            f"rank {rank} announced a dummy step with {num_rows} token rows, expected none; "
            "the step was not started"
        )


class NoGradients(MoeError):
    """Tokens or logits want a gradient."""

    code = "no_gradients"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} wants a gradient, but this runtime infers only: its output would have none; "
            "detach it, or step under torch.no_grad; the step was not started"
        )


class StepsOverlap(MoeError):
    """Something that must be alone was called while a step, or a change, is going on."""

    code = "steps_overlap"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was called while a step or a change of this runtime, or a step over its "
            "group, is going on; both would read what is half changed, or each other's rows, so "
            "this one was not started"
        )


class ExchangeFailed(MoeError):
    """A collective did not complete: a peer is gone, late, or out of step."""

    code = "exchange_failed"

    def __init__(self, *, rank: int, cause: str) -> None:
        self.rank, self.cause = rank, cause
        super().__init__(
            f"rank {rank}: an exchange of rows did not complete ({cause}); the group cannot go on "
            "without all of its ranks and this step is lost"
        )
