"""Who changed what: the audit, and whether its chain holds."""

from argparse import ArgumentTypeError, Namespace

from eplb.v1 import admin_pb2 as pb

from eplb_service.cli.client import Client
from eplb_service.cli.ends import Answer, Exit, invalid
from eplb_service.cli.options import Options
from eplb_service.cli.plain import Plain, plain
from eplb_service.cli.words import clock_time, table
from eplb_service.domain.audit import AuditEntry, first_break
from eplb_service.server.admin_wire.audit import decode_audit

PAGE = 1000
VERIFY, LIST = "verify", "list"


def audit(client: Client, options: Options, args: Namespace) -> Answer:
    """List the newest entries, or check the chain of all that are kept."""
    del options
    if args.action == VERIFY:
        return _verified(_all(client), args.head)
    if args.head is not None:
        raise invalid("--head is for `audit verify`")
    entries = _page(client, 0, args.limit)
    if not entries:
        return Answer("nothing was changed yet", [])
    rows = [
        (
            str(entry.number),
            clock_time(entry.happened.at_s),
            entry.happened.who,
            entry.happened.verb,
            entry.happened.deployment or "-",
            entry.happened.result,
            "; ".join(part for part in (entry.happened.what, entry.happened.why) if part),
        )
        for entry in entries
    ]
    return Answer(
        table(("number", "at", "who", "verb", "deployment", "result", "what, and why"), rows),
        plain(entries),
    )


def head(text: str) -> tuple[int, str]:
    """Read an entry's number and digest, as `audit verify` prints them."""
    number, colon, digest = text.partition(":")
    if not colon or not number.isdecimal() or len(number) > 18 or len(digest) != 64:
        raise ArgumentTypeError(f"{text!r} is no head; write NUMBER:DIGEST as `audit verify` does")
    return int(number), digest


def _verified(entries: tuple[AuditEntry, ...], noted: tuple[int, str] | None) -> Answer:
    """Check entries, oldest first."""
    wrong = first_break(entries)
    if not wrong and noted is not None:
        found = {entry.number: entry.digest for entry in entries}
        if noted[0] not in found:
            wrong = f"entry {noted[0]}, which was noted, is not there"
        elif found[noted[0]] != noted[1]:
            wrong = f"entry {noted[0]} is not the one that was noted: the chain was written anew"
    last = f"{entries[-1].number}:{entries[-1].digest}" if entries else ""
    facts: Plain = {"entries": len(entries), "head": last or None, "broken": wrong or None}
    if wrong:
        complaint = f"failed: {wrong}; keep a copy of the store, and of the controller's log"
        shown = f"audit        {len(entries)} kept, broken"
        return Answer(shown, facts, Exit.FAILED, complaint)
    if not entries:
        return Answer("nothing was changed yet", facts)
    return Answer(
        f"audit        {len(entries)} kept, from {entries[0].number} to {entries[-1].number}; the "
        f"chain holds\nhead         {last}\n\nNote the head elsewhere: `eplbctl audit verify "
        "--head HEAD` then also finds a chain that was written anew.",
        facts,
    )


def _all(client: Client) -> tuple[AuditEntry, ...]:
    found: list[AuditEntry] = []
    while page := _page(client, found[-1].number if found else 0, PAGE):
        found += page
        if page[-1].number <= 1:
            break
    return tuple(reversed(found))


def _page(client: Client, below: int, limit: int) -> tuple[AuditEntry, ...]:
    request = pb.AuditRequest(below=below, limit=limit)
    return decode_audit(client.ask(client.stub.Audit, request))
