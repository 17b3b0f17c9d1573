"""A rank that is refused is told of: once in the log, and to operators while it asks."""

import logging

import pytest

from eplb_service.domain.errors import RegistrationRefused
from eplb_service.domain.placement import placement_from_ranks
from eplb_service.protocol.messages import Hello
from tests.controller.group import FLAT, hello
from tests.controller.office import Office, office
from tests.controller.ranks import start_ranks

TWICE = placement_from_ranks([[[0, 0, 1], [1, 2, 3]]], num_experts=4)
"""Rank 0 holds expert 0 twice."""


async def refused(o: Office, greeting: Hello) -> None:
    with pytest.raises(RegistrationRefused, match="duplicate"):
        await o.controller.ranks.hello(greeting, start_ranks(FLAT)[0])


async def test_each_reason_is_logged_once_and_each_rank_told_while_it_is_not_taken_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with office() as o:
        for _ in range(3):
            await refused(o, hello(0, placement=TWICE))
        await refused(o, hello(1, placement=TWICE))
        lines = [r for r in caplog.records if r.msg == "registration refused"]
        assert [(r.levelno, vars(r)["rank"]) for r in lines] == [
            (logging.WARNING, 0),
            (logging.WARNING, 1),
        ]
        assert "duplicate" in vars(lines[0])["text"]
        told = o.controller.ranks.refused("")
        assert [(refusal.rank, "duplicate" in refusal.why) for refusal in told] == [
            (0, True),
            (1, True),
        ]
        assert await o.controller.operators.status("") == ()
        name = told[0].deployment
        assert [refusal.rank for refusal in o.controller.ranks.refused(name)] == [0, 1]
        assert o.controller.ranks.refused("another/0/serve/0/0") == ()
        await o.register(FLAT)
        assert o.controller.ranks.refused("") == ()
