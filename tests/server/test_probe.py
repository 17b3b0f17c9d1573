"""eplb-probe tells a leader from a standby, and a standby from one that is gone."""

import asyncio

import pytest

from eplb_service.server.probe import NO, OK, SILENT, main
from tests.server.conftest import Served


async def probe(question: str, port: int) -> int:
    words = [question, "--endpoint", f"127.0.0.1:{port}", "--timeout", "5"]
    return await asyncio.to_thread(main, words)


@pytest.mark.parametrize(("is_leading", "leads"), [(True, OK), (False, NO)])
async def test_a_standby_lives_and_only_a_leader_leads(
    served: Served, capsys: pytest.CaptureFixture[str], *, is_leading: bool, leads: int
) -> None:
    await served.server.lead(is_leading=is_leading)
    assert await probe("leads", served.port) == leads
    assert await probe("lives", served.port) == OK
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("leads" if is_leading else "it stands by, starts or stops")
    assert second.endswith("lives")


async def test_one_that_is_gone_does_neither(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    await served.server.stop()
    for question in ("leads", "lives"):
        words = [question, "--endpoint", f"127.0.0.1:{served.port}", "--timeout", "0.5"]
        assert await asyncio.to_thread(main, words) == SILENT
    assert "no answer from" in capsys.readouterr().out
