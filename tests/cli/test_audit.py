"""What operators did, on one page, and whether it can be believed."""

import json
from dataclasses import replace

import pytest

from eplb_service.domain.audit import AuditEntry, Happened, follow
from tests.cli.conftest import Ctl
from tests.server.desks import Operators


def chain(length: int, who: str = "eplb://operator/otto") -> tuple[AuditEntry, ...]:
    """Newest first."""
    found: list[AuditEntry] = []
    for number in range(length):
        happened = Happened(1.8e9 + number, who, "freeze", "m", "for 60 s", "peak", "done")
        found.append(follow(found[-1] if found else None, happened))
    return tuple(reversed(found))


def test_the_audit_is_listed_newest_first(ctl: Ctl, operators: Operators) -> None:
    operators.audit_kept = chain(3)
    ran = ctl("audit", "--limit", "2")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["3", "2"]
    assert "eplb://operator/otto" in lines[1]
    assert "for 60 s; peak" in lines[1]
    told = json.loads(ctl("audit", "-o", "json").out)
    assert [entry["number"] for entry in told] == [3, 2, 1]


def test_nothing_changed_is_said_so(ctl: Ctl) -> None:
    for words in (("audit",), ("audit", "verify")):
        ran = ctl(*words)
        assert (ran.code, ran.out) == (0, "nothing was changed yet\n")


def test_a_chain_that_holds_is_told_with_its_head(ctl: Ctl, operators: Operators) -> None:
    """More than one page of it."""
    operators.audit_kept = chain(2300)
    ran = ctl("audit", "verify")
    assert ran.code == 0
    assert "2300 kept, from 1 to 2300; the chain holds" in ran.out
    noted = f"2300:{operators.audit_kept[0].digest}"
    assert noted in ran.out
    assert ctl("audit", "verify", "--head", noted).code == 0


def test_a_chain_that_is_broken_is_a_failure(ctl: Ctl, operators: Operators) -> None:
    newest, middle, oldest = chain(3)
    forged = replace(middle, happened=replace(middle.happened, who="eplb://operator/eve"))
    operators.audit_kept = (newest, forged, oldest)
    ran = ctl("audit", "verify")
    assert ran.code == 1
    assert "entry 2 was changed: its digest is not that of its content" in ran.err


def test_a_chain_that_was_written_anew_is_found_by_a_noted_head(
    ctl: Ctl, operators: Operators
) -> None:
    noted = chain(3)[1]
    operators.audit_kept = chain(5, "eplb://operator/eve")
    assert ctl("audit", "verify").code == 0, "it holds by itself"
    ran = ctl("audit", "verify", "--head", f"{noted.number}:{noted.digest}")
    assert ran.code == 1
    assert "entry 2 is not the one that was noted" in ran.err
    ran = ctl("audit", "verify", "--head", f"9:{noted.digest}")
    assert "entry 9, which was noted, is not there" in ran.err


@pytest.mark.parametrize("head", ["", "3", "x:" + "0" * 64, "3:abc"])
def test_a_head_that_is_none_is_refused(ctl: Ctl, head: str) -> None:
    assert ctl("audit", "verify", "--head", head).code == 2
