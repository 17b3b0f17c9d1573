"""An engine that goes by another map than the one in use is found out, by its name."""

from eplb_service.domain.ids import IntArray
from eplb_service.domain.layout import SlotLayout
from eplb_service.domain.shares import Ownership, even_shares
from tests.agent.fakes import OLD
from tests.agent.test_movers import FakeMemory
from worker_agent.adapters.map_audit import MapAudit

TABLE = even_shares(OLD, Ownership.OWN).table_of(1)


def looks(memory: FakeMemory, number: int, table: IntArray = TABLE) -> list[str | None]:
    audit = MapAudit(SlotLayout(OLD.layout.slots_per_rank), 1)
    return [audit.look(memory, OLD, table) for _ in range(number)]


def test_right_maps_are_never_stale() -> None:
    assert looks(FakeMemory(1), 6) == [None] * 6


def test_a_stale_table_is_named_by_layer_expert_and_slot_at_its_second_look() -> None:
    memory = FakeMemory(1)
    memory.held_maps.tables[1, 2, 0] += 1
    told = looks(memory, 3)
    assert told[:2] == [None, None]
    assert told[2] is not None
    want = int(TABLE[1, 2, 0])
    for part in ("rank 1", "layer 1", "expert 2", f"slot {want + 1}", f"expected slot {want}"):
        assert part in told[2]


def test_a_stale_account_of_slots_is_named_by_layer_and_slot() -> None:
    memory = FakeMemory(1)
    memory.held_maps.held[0, 1] = 1
    told = looks(memory, 2)
    assert told[1] is not None
    assert "local slot 1 is said to hold expert 1" in told[1]


def test_a_map_that_was_just_being_changed_is_not_stale() -> None:
    memory = FakeMemory(1)
    audit = MapAudit(SlotLayout(OLD.layout.slots_per_rank), 1)
    memory.held_maps.tables[0, 0, 0] += 1
    assert audit.look(memory, OLD, TABLE) is None
    after = TABLE.copy()
    after[0, 0, 0] += 1
    assert [audit.look(memory, OLD, after) for _ in range(4)] == [None] * 4
