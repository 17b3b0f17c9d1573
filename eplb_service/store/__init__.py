"""Durable memory of the controller: SQLite, Redis, or memory for tests. Decides nothing."""

from eplb_service.store.locate import open_store
from eplb_service.store.memory import MemoryStore
from eplb_service.store.sqlite import SqliteStore

__all__ = ["MemoryStore", "SqliteStore", "open_store"]
