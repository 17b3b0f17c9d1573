"""One tree of settings for the whole service. Reads files and the environment; decides nothing."""

from eplb_service.settings.settings import Settings, merge_overrides
from eplb_service.settings.sources import load_settings
from eplb_service.settings.tree import (
    BudgetSettings,
    OnCorruption,
    PlanningSettings,
    ProtocolSettings,
    ServerSettings,
    StoreSettings,
    WindowSettings,
)

__all__ = [
    "BudgetSettings",
    "OnCorruption",
    "PlanningSettings",
    "ProtocolSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "WindowSettings",
    "load_settings",
    "merge_overrides",
]
