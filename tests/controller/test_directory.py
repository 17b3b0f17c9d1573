"""Deployments are spread over several controllers; who asks the wrong one is told where to go."""

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from eplb_service.cli.main import main
from eplb_service.domain.directory import Directory
from eplb_service.domain.errors import Elsewhere
from eplb_service.server.serving import ControllerServer, Desks, ServerOptions
from eplb_service.settings.tree import DirectorySettings
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT, IDENTITY
from tests.controller.office import Office, act, office
from tests.controller.ranks import start_ranks
from tests.host.processes import free_port

HERE, THERE = "127.0.0.1:1", "127.0.0.1:2"
OURS = Directory(HERE, ((IDENTITY.name, HERE), ("*", THERE)))
THEIRS = Directory(THERE, OURS.entries)


async def test_ranks_and_operators_of_another_controllers_deployment_are_told_where_it_is() -> None:
    async with office(directory=THEIRS) as o:
        rank = start_ranks(FLAT)[0]
        with pytest.raises(Elsewhere, match=f"belongs to the controller at {HERE}") as told:
            await o.controller.ranks.hello(rank.greeting(), rank)
        assert told.value.endpoint == HERE
        with pytest.raises(Elsewhere):
            await o.controller.operators.status(IDENTITY.name)
        assert await o.controller.operators.status("") == ()


async def test_a_deployment_that_is_given_away_is_not_taken_up_again() -> None:
    store = MemoryStore()
    async with office(store, directory=OURS) as o:
        await o.register(FLAT)
    async with office(store, directory=THEIRS) as o:
        assert list(o.controller.registry.all()) == []
    async with office(store, directory=OURS) as o:
        assert [one.name for one in o.controller.registry.all()] == [IDENTITY.name]


async def test_an_act_without_a_name_is_for_the_only_deployment_that_is_here() -> None:
    async with office(directory=Directory(HERE, (("another", HERE), ("", THERE)))) as o:
        await o.register(FLAT)
        assert o.controller.registry.find("").name == IDENTITY.name


def test_the_first_entry_that_fits_decides_and_what_fits_none_is_served_where_it_comes() -> None:
    assert OURS.is_mine(IDENTITY.name)
    assert not OURS.is_mine("another/0/serve/0/0")
    assert Directory(HERE, (("k3/*", THERE),)).is_mine("qwen/0/serve/0/0")
    assert Directory().is_mine("any")


@pytest.mark.parametrize("mine", ["", "127.0.0.1:3"])
def test_a_controller_that_is_in_no_entry_is_refused(mine: str) -> None:
    entries = [{"deployments": "*", "endpoint": HERE}]
    with pytest.raises(ValidationError, match="which is the endpoint of no entry"):
        DirectorySettings.model_validate({"mine": mine, "entries": entries})


async def serve(o: Office, port: int) -> ControllerServer:
    controller = o.controller
    desks = Desks(controller.ranks, controller.operators, controller.acts, controller.operators)
    server = ControllerServer(desks, o.figures, ServerOptions(port=port, stop_grace_s=0.1))
    await server.start()
    return server


async def ctl(port: int, *words: str) -> int:
    asked = ("--endpoint", f"127.0.0.1:{port}", "--deployment", IDENTITY.name, *words)
    return await asyncio.to_thread(main, asked)


async def test_eplbctl_follows_the_directory_to_the_right_controller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    right, wrong = free_port(), free_port()
    entries = ((IDENTITY.name, f"127.0.0.1:{right}"), ("*", f"127.0.0.1:{wrong}"))
    first = Directory(f"127.0.0.1:{right}", entries)
    other = Directory(f"127.0.0.1:{wrong}", entries)
    async with office(directory=first) as o, office(directory=other) as stranger:
        await o.register(FLAT)
        servers = [await serve(o, right), await serve(stranger, wrong)]
        try:
            assert await ctl(wrong, "status") == 0
            assert IDENTITY.name in capsys.readouterr().out
            assert await ctl(wrong, "freeze", "--for", "1h", "--reason", "test") == 0
            [view] = await o.controller.operators.status("")
            assert view.operation.freeze is not None
        finally:
            for server in servers:
                await server.stop()


async def test_directories_that_differ_end_the_command_and_not_in_a_circle(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ports = [free_port(), free_port()]
    ends = [f"127.0.0.1:{port}" for port in ports]
    async with (
        office(directory=Directory("x", (("*", ends[1]),))) as one,
        office(directory=Directory("y", (("*", ends[0]),))) as other,
    ):
        servers = [await serve(one, ports[0]), await serve(other, ports[1])]
        try:
            assert await ctl(ports[0], "status") == 3
            assert "their directories differ" in capsys.readouterr().err
        finally:
            for server in servers:
                await server.stop()


async def test_an_act_for_another_controllers_deployment_does_nothing() -> None:
    async with office(directory=THEIRS) as o:
        with pytest.raises(Elsewhere):
            await o.controller.acts.drain(replace(act(), deployment=IDENTITY.name), 0)
