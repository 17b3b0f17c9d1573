"""Every verb that changes something is written down before it acts, and again when it has.

A verb that cannot be written down does not act. One that has acted stays done even where its
result cannot be written down; the log then says so.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from eplb_service.clock import Clock
from eplb_service.controller.desk import ActDesk, ActRequest, MapRequest, PlanRequest
from eplb_service.controller.views import NothingView, PlanView, RunView, StatusView
from eplb_service.domain.audit import AuditEntry, Happened, cut
from eplb_service.domain.errors import EplbError

log = logging.getLogger(__name__)

T = TypeVar("T")

REFUSALS_AT_ONCE = 60
REFUSAL_EVERY_S = 1.0
"""Refusals of strangers that are written down; more are counted in the next entry."""


class AuditBook(Protocol):
    """Where the audit is kept: a store of any kind, shared by all controllers on it."""

    async def audit(self, happened: Happened) -> AuditEntry:
        """Add an entry to the chain; durable when it returns. Raises StoreUnavailable."""
        ...

    async def audited(self, below: int, limit: int) -> tuple[AuditEntry, ...]:
        """Return entries with numbers below one (0: all), the newest first."""
        ...


@dataclass(slots=True)
class _Allowance:
    left: float
    at_s: float
    missed: int = 0


class Auditor:
    """Writes the audit."""

    def __init__(self, book: AuditBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._refusals = _Allowance(REFUSALS_AT_ONCE, clock.monotonic_s())

    async def around(
        self, act: ActRequest, verb: str, what: str, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Do what changes something, written down before and after."""
        await self._write(act, verb, what, "begun")
        try:
            done = await work()
        except EplbError as failed:
            await self._write_end(act, verb, what, f"{failed.code}: {failed}")
            raise
        except BaseException as failed:
            await self._write_end(act, verb, what, f"failed: {type(failed).__name__}")
            raise
        await self._write_end(act, verb, what, "done")
        return done

    async def refused(self, who: str, what: str, why: EplbError) -> None:
        """Write down that a caller was refused; a flood of refusals is counted, not written."""
        now_s, kept = self._clock.monotonic_s(), self._refusals
        grown = kept.left + (now_s - kept.at_s) / REFUSAL_EVERY_S
        kept.left, kept.at_s = min(REFUSALS_AT_ONCE, grown), now_s
        if kept.left < 1:
            kept.missed += 1
            return
        kept.left -= 1
        more = f" ({kept.missed} more were refused before and not written down)"
        text = f"{why.code}: {why}"[:400] + (more if kept.missed else "")
        kept.missed = 0
        happened = Happened(self._clock.wall_s(), cut(who), cut(what), "", "", "", cut(text))
        try:
            self._tell(await self._book.audit(happened))
        except EplbError as failed:
            log.error("refusal not audited", extra={"who": who, "code": failed.code})  # noqa: TRY400 -- it has a name

    async def _write_end(self, act: ActRequest, verb: str, what: str, result: str) -> None:
        try:
            await self._write(act, verb, what, result)
        except EplbError as failed:
            log.error(  # noqa: TRY400 -- it has a name
                "result not audited",
                extra={"who": act.who, "verb": verb, "result": result, "code": failed.code},
            )

    async def _write(self, act: ActRequest, verb: str, what: str, result: str) -> None:
        asked = f"{what} (request {act.request_id})".strip()
        fields = (act.who, verb, act.deployment, asked, act.reason, result)
        happened = Happened(self._clock.wall_s(), *(cut(field) for field in fields))
        self._tell(await self._book.audit(happened))

    @staticmethod
    def _tell(entry: AuditEntry) -> None:
        # A second witness: the log is kept elsewhere, and holds the chain's heads.
        told = {"number": entry.number, "digest": entry.digest, "verb": entry.happened.verb}
        log.info("audited", extra=told)


class AuditedPlans:
    """The verbs of plans, written down."""

    def __init__(self, acts: ActDesk, auditor: Auditor) -> None:
        self._acts = acts
        self._auditor = auditor

    async def apply(self, act: ActRequest, plan_id: str) -> RunView:
        """Start a kept plan."""
        return await self._auditor.around(
            act, "apply", f"plan {plan_id}", lambda: self._acts.apply(act, plan_id)
        )

    async def rebalance(self, act: ActRequest, request: PlanRequest) -> PlanView | NothingView:
        """Plan, and apply if the verdict is yes."""
        what = f"policy {request.policy or 'configured'}, layers {list(request.layers) or 'all'}"
        return await self._auditor.around(
            act, "rebalance", what, lambda: self._acts.rebalance(act, request)
        )

    async def abort(self, act: ActRequest, plan_id: str) -> RunView:
        """End a plan after its running wave."""
        return await self._auditor.around(
            act, "abort", f"plan {plan_id}", lambda: self._acts.abort(act, plan_id)
        )

    async def rollback(self, act: ActRequest, epoch: int | None) -> PlanView | NothingView:
        """Apply a plan back to the placement of an earlier epoch."""
        what = "to the epoch before" if epoch is None else f"to epoch {epoch}"
        return await self._auditor.around(
            act, "rollback", what, lambda: self._acts.rollback(act, epoch)
        )

    async def import_map(self, act: ActRequest, request: MapRequest) -> PlanView | NothingView:
        """Apply a plan to the placement of an expert-map file, or only draw it."""
        text = request.text
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        what = f"map of {len(text)} characters, sha256 {digest}"
        what += ", reshaped" if request.may_reshape else ""
        what += ", dry run" if request.is_dry_run else ""
        return await self._auditor.around(
            act, "import", what, lambda: self._acts.import_map(act, request)
        )


class AuditedSwitches:
    """The verbs of switches and drains, written down."""

    def __init__(self, acts: ActDesk, auditor: Auditor) -> None:
        self._acts = acts
        self._auditor = auditor

    async def freeze(self, act: ActRequest, seconds: float) -> StatusView:
        """Allow no automatic plan for a time."""
        verb = "freeze" if seconds else "unfreeze"
        return await self._auditor.around(
            act,
            verb,
            f"for {seconds:g} s" if seconds else "",
            lambda: self._acts.freeze(act, seconds),
        )

    async def resume(self, act: ActRequest, halt_number: int) -> StatusView:
        """Ask all ranks to clear a halt."""
        return await self._auditor.around(
            act, "resume", f"halt {halt_number}", lambda: self._acts.resume(act, halt_number)
        )

    async def set_config(self, act: ActRequest, values: Mapping[str, str]) -> Mapping[str, str]:
        """Change settings."""
        what = ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
        return await self._auditor.around(
            act, "config", what, lambda: self._acts.set_config(act, values)
        )

    async def drain(self, act: ActRequest, rank: int) -> PlanView | NothingView:
        """Empty a rank."""
        return await self._auditor.around(
            act, "drain", f"rank {rank}", lambda: self._acts.drain(act, rank)
        )

    async def undrain(self, act: ActRequest, rank: int) -> PlanView | NothingView:
        """Let a rank be used again."""
        return await self._auditor.around(
            act, "undrain", f"rank {rank}", lambda: self._acts.undrain(act, rank)
        )


class AuditedActs(AuditedPlans, AuditedSwitches):
    """A desk.ActDesk that has every verb of another written down."""
