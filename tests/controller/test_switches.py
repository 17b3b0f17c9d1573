"""What operators set: it is kept, it never ends the controller, and changes do not undo others."""

import asyncio
from datetime import UTC, datetime

import pytest

from eplb_service.controller.records import Note, SettingsNote
from eplb_service.domain.errors import InvalidRequest
from eplb_service.domain.ids import Generation
from eplb_service.store.memory import MemoryStore
from tests.controller.group import FLAT, IDENTITY
from tests.controller.office import act, office


async def test_overrides_that_no_longer_hold_are_set_aside_aloud_and_the_rest_counts() -> None:
    store = MemoryStore()
    async with office(store) as o:
        await o.register(FLAT)
        generation = o.controller.registry.generation
        old = '{"budget.max_moves": 7, "gates.renamed": 1, "gates.min_coverage": 3}'
        await store.keep(generation, IDENTITY.name, SettingsNote(old))
    async with office(store) as o:
        config = await o.controller.operators.get_config("")
        assert config["budget.max_moves"] == "7"
        assert float(config["gates.min_coverage"]) <= 1
        newest = await told(store, "failure")
        assert "gates.renamed" in newest
        assert old in newest


async def told(store: MemoryStore, kind: str) -> str:
    """Text of the newest line of history of a kind."""
    async with asyncio.timeout(5):
        while True:
            found = [e.text for e in await store.history(IDENTITY.name, 9) if e.kind == kind]
            if found:
                return found[0]
            await asyncio.sleep(0)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e12])
async def test_a_freeze_must_be_a_time(seconds: float) -> None:
    async with office() as o:
        await o.register(FLAT)
        with pytest.raises(InvalidRequest, match=r"a freeze of .* nothing changed"):
            await o.controller.acts.freeze(act(), seconds)


async def test_a_freeze_ends_by_itself() -> None:
    async with office() as o:
        await o.register(FLAT)
        view = await o.controller.acts.freeze(act(), 3600)
        assert view.operation.freeze is not None
        left_s = view.operation.freeze.until_s - datetime.now(UTC).timestamp()
        assert left_s == pytest.approx(3600, abs=60)
        view = await o.controller.acts.freeze(act(), 1e-9)
        assert view.operation.freeze is None


class SlowStore(MemoryStore):
    """A store that takes a turn of the loop for every act, as every real one does."""

    async def keep(self, generation: Generation, deployment: str, note: Note) -> None:
        await asyncio.sleep(0)
        await super().keep(generation, deployment, note)


async def test_two_changes_at_one_time_are_both_kept() -> None:
    store = SlowStore()
    async with office(store) as o:
        await o.register(FLAT)
        await asyncio.gather(
            o.controller.acts.set_config(act(), {"budget.max_moves": "7"}),
            o.controller.acts.set_config(act(), {"gates.min_gain": "0.2"}),
        )
        config = await o.controller.operators.get_config("")
        assert (config["budget.max_moves"], config["gates.min_gain"]) == ("7", "0.2")
    async with office(store) as o:
        config = await o.controller.operators.get_config("")
        assert (config["budget.max_moves"], config["gates.min_gain"]) == ("7", "0.2")
