"""One tree of settings for the whole service. Reads files and the environment; decides nothing."""

from eplb_service.settings.settings import Settings, merge_overrides
from eplb_service.settings.sources import load_settings
from eplb_service.settings.tree import (
    BudgetSettings,
    GateSettings,
    PlanningSettings,
    ProtocolSettings,
    SecuritySettings,
    ServerSettings,
    ShareSettings,
    StoreSettings,
    WindowSettings,
)
from eplb_service.settings.tuner import SettingsTuner

__all__ = [
    "BudgetSettings",
    "GateSettings",
    "PlanningSettings",
    "ProtocolSettings",
    "SecuritySettings",
    "ServerSettings",
    "Settings",
    "SettingsTuner",
    "ShareSettings",
    "StoreSettings",
    "WindowSettings",
    "load_settings",
    "merge_overrides",
]
