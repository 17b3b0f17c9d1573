"""Load reports: the message that comes hundreds of times a second.

Axes    L MoE layers   S the rank's local slots   X sent entries

Raises InvalidReport with one word of reason: shape, negative, nan, or malformed.
"""

from math import isfinite
from typing import TypeVar

from eplb.v1 import agent_pb2

from eplb_service.domain.errors import InvalidReport, InvalidRequest, InvalidTable
from eplb_service.domain.ids import CountArray, Epoch, IntArray, Revision
from eplb_service.domain.report import NO_SENT, CountedUnder, LoadReport, SentCounts, StepCounts
from eplb_service.wire.enums import PHASE
from eplb_service.wire.matrix import decode_counts, decode_ints, encode_matrix
from eplb_service.wire.scalars import digest, require


def encode_report(report: LoadReport) -> agent_pb2.LoadReport:
    """Translate a load report; sent counts are left out where there are none."""
    message = agent_pb2.LoadReport(
        epoch=report.epoch,
        placement=report.placement,
        revision=report.under.revision,
        phase=PHASE.encode(report.phase),
        step=report.step,
        reset=report.reset,
        is_closing=report.is_closing,
        received=encode_matrix(report.received),
        sent_total=encode_matrix(report.sent_total),
        steps=_encode_steps(report.steps),
    )
    if report.sent.tokens.size:
        message.sent.layers.CopyFrom(encode_matrix(report.sent.layers))
        message.sent.experts.CopyFrom(encode_matrix(report.sent.experts))
        message.sent.tokens.CopyFrom(encode_matrix(report.sent.tokens))
    return message


def decode_report(message: agent_pb2.LoadReport) -> LoadReport:
    """Translate a load report; its arrays are views of the message's bytes."""
    try:
        require(message, "received", "sent_total", "steps")
        received = _counted(decode_counts(message.received, "received", axes=2), "received")
        sent_total = _counted(decode_counts(message.sent_total, "sent_total", axes=1), "sent_total")
        if len(received) != len(sent_total):
            raise InvalidReport(
                f"received counts {len(received)} layers and sent_total {len(sent_total)}; "
                "expected the same; the report is dropped",
                reason="shape",
            )
        return LoadReport(
            under=CountedUnder(
                Epoch(_natural(message.epoch, "epoch")),
                digest(message.placement, "placement"),
                Revision(_natural(message.revision, "revision")),
            ),
            phase=PHASE.decode(message.phase, "phase"),
            step=_natural(message.step, "step"),
            reset=_natural(message.reset, "reset"),
            is_closing=message.is_closing,
            received=received,
            sent_total=sent_total,
            sent=_decode_sent(message.sent) if message.HasField("sent") else NO_SENT,
            steps=_decode_steps(message.steps),
        )
    # What is wrong with a part gets the name of what is wrong with the report.
    except InvalidTable as error:
        raise InvalidReport(f"load report: {error}", reason="shape") from error
    except InvalidRequest as error:
        raise InvalidReport(f"load report: {error}", reason="malformed") from error


def _decode_sent(message: agent_pb2.SentCounts) -> SentCounts:
    """Translate the three columns."""
    layers = decode_ints(message.layers, "sent.layers", axes=1)
    experts = decode_ints(message.experts, "sent.experts", axes=1)
    tokens = decode_counts(message.tokens, "sent.tokens", axes=1)
    if not len(layers) == len(experts) == len(tokens):
        raise InvalidReport(
            f"columns of sent have {len(layers)}, {len(experts)} and {len(tokens)} entries; "
            "expected the same; the report is dropped",
            reason="shape",
        )
    return SentCounts(
        _counted(layers, "sent.layers"),
        _counted(experts, "sent.experts"),
        _counted(tokens, "sent.tokens"),
    )


def _encode_steps(steps: StepCounts) -> agent_pb2.StepCounts:
    """Translate the counts beside the load."""
    return agent_pb2.StepCounts(
        real=steps.real,
        dummy=steps.dummy,
        warmup=steps.warmup,
        profile=steps.profile,
        tokens=steps.tokens,
        padding_rows=steps.padding_rows,
        overflow_tokens=steps.overflow_tokens,
        step_seconds=steps.step_seconds,
        expert_seconds=steps.expert_seconds,
    )


def _decode_steps(message: agent_pb2.StepCounts) -> StepCounts:
    """Translate the counts beside the load."""
    return StepCounts(
        real=_natural(message.real, "steps.real"),
        dummy=_natural(message.dummy, "steps.dummy"),
        warmup=_natural(message.warmup, "steps.warmup"),
        profile=_natural(message.profile, "steps.profile"),
        tokens=_natural(message.tokens, "steps.tokens"),
        padding_rows=_natural(message.padding_rows, "steps.padding_rows"),
        overflow_tokens=_natural(message.overflow_tokens, "steps.overflow_tokens"),
        step_seconds=_seconds(message.step_seconds, "steps.step_seconds"),
        expert_seconds=_seconds(message.expert_seconds, "steps.expert_seconds"),
    )


Counts = TypeVar("Counts", IntArray, CountArray)


def _counted(array: Counts, where: str) -> Counts:
    """Return an array of counts, none negative."""
    if array.size and array.min() < 0:
        raise InvalidReport(
            f"{where} holds {array.min()}; expected no count below 0; the report is dropped",
            reason="negative",
        )
    return array


def _natural(value: int, where: str) -> int:
    """Return a number that must not be negative."""
    if value < 0:
        raise InvalidReport(
            f"{where} is {value}; expected at least 0; the report is dropped", reason="negative"
        )
    return value


def _seconds(value: float, where: str) -> float:
    """Return a duration: finite and not negative."""
    if not isfinite(value):
        raise InvalidReport(
            f"{where} is {value}; expected a finite number; the report is dropped", reason="nan"
        )
    if value < 0:
        raise InvalidReport(
            f"{where} is {value}; expected at least 0; the report is dropped", reason="negative"
        )
    return value
