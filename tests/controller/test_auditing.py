"""Every verb that changes something is written down, before and after."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from eplb_service.clock import ManualClock
from eplb_service.controller.auditing import REFUSALS_AT_ONCE, AuditedActs, Auditor
from eplb_service.controller.desk import ActDesk, ActRequest, DrainDesk, MapRequest, PlanRequest
from eplb_service.domain.audit import LONGEST, AuditEntry, Happened, first_break
from eplb_service.domain.errors import AccessDenied, PlanOvertaken, StoreUnavailable
from eplb_service.store import MemoryStore
from tests.server.desks import Operators

ACT = ActRequest("m", "request-1", "eplb://operator/otto (root@host)", "evening peak")
SPEC = PlanRequest("m", "packing", (1, 0), "", "")
VERBS: list[tuple[str, str, Callable[[AuditedActs], Coroutine[Any, Any, object]]]] = [
    ("apply", "plan 7f3a", lambda acts: acts.apply(ACT, "7f3a")),
    ("rebalance", "policy packing, layers [1, 0]", lambda acts: acts.rebalance(ACT, SPEC)),
    ("abort", "plan 7f3a", lambda acts: acts.abort(ACT, "7f3a")),
    ("rollback", "to epoch 4", lambda acts: acts.rollback(ACT, 4)),
    ("rollback", "to the epoch before", lambda acts: acts.rollback(ACT, None)),
    ("freeze", "for 60 s", lambda acts: acts.freeze(ACT, 60.0)),
    ("unfreeze", "", lambda acts: acts.freeze(ACT, 0.0)),
    ("resume", "halt 2", lambda acts: acts.resume(ACT, 2)),
    ("config", "a=1, b=2", lambda acts: acts.set_config(ACT, {"b": "2", "a": "1"})),
    ("import", "map of 2 characters", lambda acts: acts.import_map(ACT, MapRequest("{}"))),
    ("drain", "rank 3", lambda acts: acts.drain(ACT, 3)),
    ("undrain", "rank 3", lambda acts: acts.undrain(ACT, 3)),
]


class Silent(MemoryStore):
    """A store that answers only so many times."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers

    async def audit(self, happened: Happened) -> AuditEntry:
        self.answers -= 1
        if self.answers < 0:
            raise StoreUnavailable("the disk is full; nothing was recorded")
        return await super().audit(happened)


def audited(book: MemoryStore) -> tuple[AuditedActs, Operators, Auditor]:
    operators, auditor = Operators(), Auditor(book, ManualClock())
    return AuditedActs(operators, auditor), operators, auditor


async def results(book: MemoryStore) -> list[tuple[str, str]]:
    entries = list(reversed(await book.audited(0, 1000)))
    assert first_break(entries) == ""
    return [(entry.happened.verb, entry.happened.result) for entry in entries]


def test_no_verb_that_changes_something_is_left_out() -> None:
    own = (name for desk in (ActDesk, DrainDesk) for name in vars(desk))
    verbs = {name for name in own if not name.startswith("_")}
    named = {"freeze": "unfreeze", "set_config": "config", "import_map": "import"}
    assert {named.get(verb, verb) for verb in verbs} <= {verb for verb, _, _ in VERBS}


@pytest.mark.parametrize(("verb", "what", "call"), VERBS, ids=[f"{v} {w}" for v, w, _ in VERBS])
async def test_a_verb_is_written_down_before_and_after(
    verb: str, what: str, call: Callable[[AuditedActs], Coroutine[Any, Any, object]]
) -> None:
    book = MemoryStore()
    acts, operators, _ = audited(book)
    await call(acts)
    assert len(operators.asked) == 1
    assert await results(book) == [(verb, "begun"), (verb, "done")]
    entry = (await book.audited(0, 1))[0].happened
    assert (entry.who, entry.why, entry.deployment) == (ACT.who, ACT.reason, "m")
    assert entry.what.startswith(what)
    assert "request-1" in entry.what


async def test_a_verb_that_fails_is_written_down_with_why() -> None:
    book = MemoryStore()
    acts, operators, _ = audited(book)
    operators.wrong = PlanOvertaken("epoch 42 is served")
    with pytest.raises(PlanOvertaken):
        await acts.apply(ACT, "7f3a")
    operators.wrong = RuntimeError("secret of the inside")
    with pytest.raises(RuntimeError):
        await acts.apply(ACT, "7f3a")
    ends = [result for _, result in await results(book) if result != "begun"]
    assert ends == ["plan_overtaken: epoch 42 is served", "failed: RuntimeError"]


async def test_a_verb_that_cannot_be_written_down_does_not_act() -> None:
    acts, operators, _ = audited(Silent(0))
    with pytest.raises(StoreUnavailable):
        await acts.freeze(ACT, 60.0)
    assert not operators.asked


async def test_what_was_done_stays_done_though_its_result_cannot_be_written_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    acts, operators, _ = audited(Silent(1))
    await acts.freeze(ACT, 60.0)
    assert len(operators.asked) == 1
    assert "result not audited" in caplog.text


async def test_refusals_are_written_down_and_a_flood_of_them_is_counted() -> None:
    book = MemoryStore()
    clock = ManualClock()
    auditor = Auditor(book, clock)
    why = AccessDenied("Freeze needs the role operator; nothing was done")
    for _ in range(REFUSALS_AT_ONCE + 500):
        await auditor.refused("eplb://viewer/vera", "Freeze", why)
    assert len(await book.audited(0, 1000)) == REFUSALS_AT_ONCE
    clock.advance(2.0)
    await auditor.refused("eplb://viewer/vera", "Freeze", why)
    entry = (await book.audited(0, 1))[0].happened
    assert (entry.who, entry.verb) == ("eplb://viewer/vera", "Freeze")
    assert entry.result.startswith("access_denied: Freeze needs the role operator")
    assert "500 more were refused before" in entry.result


async def test_no_field_grows_without_limit() -> None:
    book = MemoryStore()
    acts, _, _ = audited(book)
    await acts.set_config(ActRequest("m", "r", "w" * 9000, "y" * 9000), {"a": "1" * 90_000})
    for entry in await book.audited(0, 9):
        happened = entry.happened
        assert max(map(len, (happened.who, happened.what, happened.why))) == LONGEST
