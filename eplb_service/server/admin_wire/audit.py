"""The audit on the street."""

from collections.abc import Iterable
from dataclasses import asdict

from eplb.v1 import admin_pb2 as pb

from eplb_service.domain.audit import AuditEntry, Happened


def encode_audit(entries: Iterable[AuditEntry]) -> pb.AuditResponse:
    """Translate entries, in their order."""
    return pb.AuditResponse(
        entries=[
            pb.AuditEntry(
                number=entry.number,
                previous=entry.previous,
                digest=entry.digest,
                **asdict(entry.happened),
            )
            for entry in entries
        ]
    )


def decode_audit(message: pb.AuditResponse) -> tuple[AuditEntry, ...]:
    """Translate entries, in their order."""
    return tuple(
        AuditEntry(
            entry.number,
            Happened(
                entry.at_s,
                entry.who,
                entry.verb,
                entry.deployment,
                entry.what,
                entry.why,
                entry.result,
            ),
            entry.previous,
            entry.digest,
        )
        for entry in message.entries
    )
