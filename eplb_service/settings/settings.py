"""All settings together, and the part of them that operators may change while the service runs."""

import json
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.variables import DELIMITER, PREFIX, near
from eplb_service.settings.complaints import complaints
from eplb_service.settings.tree import (
    BudgetSettings,
    DirectorySettings,
    GateSettings,
    LeadingSettings,
    PlanningSettings,
    ProtocolSettings,
    RegistrationSettings,
    SecuritySettings,
    ServerSettings,
    ShareSettings,
    StoreSettings,
    WindowSettings,
)

OVERRIDABLE = ("budget", "gates", "planning.policy", "shares")
"""Sections and single settings that operators may change."""

_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


class Settings(BaseSettings):
    """Everything that one service can be told; sources.load_settings fills it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=DELIMITER, frozen=True, extra="forbid"
    )

    server: ServerSettings = ServerSettings()
    security: SecuritySettings = SecuritySettings()
    store: StoreSettings = StoreSettings()
    leading: LeadingSettings = LeadingSettings()
    directory: DirectorySettings = DirectorySettings()
    planning: PlanningSettings = PlanningSettings()
    shares: ShareSettings = ShareSettings()
    budget: BudgetSettings = BudgetSettings()
    gates: GateSettings = GateSettings()
    window: WindowSettings = WindowSettings()
    protocol: ProtocolSettings = ProtocolSettings()
    registration: RegistrationSettings = RegistrationSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what is passed in and nothing else, so that making settings reads nothing."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    def overridable(self) -> Mapping[str, str]:
        """Return every setting that operators may change, by dotted name, as JSON."""
        tree = _OBJECT.validate_python(self.model_dump(mode="json"))
        leaves = {
            name: json.dumps(value)
            for name, value in _leaves(tree)
            if name in OVERRIDABLE or name.partition(".")[0] in OVERRIDABLE
        }
        return dict(sorted(leaves.items()))

    def with_overrides(self, text: str) -> Self:
        """Return settings with an operator's values in place; all of them or none.

        text    a JSON object of dotted names to values
        Raises InvalidSettings that lists everything that is wrong with them.
        """
        overrides = read_overrides(text)
        known = self.overridable()
        unknown = [_unknown(name, known) for name in overrides if name not in known]
        if unknown:
            raise InvalidSettings("; ".join(unknown) + "; nothing was changed")
        tree = _OBJECT.validate_python(self.model_dump(mode="json"))
        for name, value in overrides.items():
            _put(tree, name, value)
        try:
            return type(self).model_validate(tree)
        except ValidationError as error:
            raise InvalidSettings(f"{complaints(error)}; nothing was changed") from error


def merge_overrides(text: str, values: Mapping[str, str]) -> str:
    """Return an operator's overrides, whole, with new values on top.

    text      the overrides so far, a JSON object
    values    new ones, JSON by dotted name; null takes an override back
    Raises InvalidSettings where a value is not JSON. Whether names and values are right
    is for Settings.with_overrides to say.
    """
    merged = read_overrides(text)
    for name, value in values.items():
        try:
            merged[name] = _OBJECT.validate_json(f'{{"it": {value}}}')["it"]
        except ValidationError as error:
            raise InvalidSettings(
                f"{name} = {value} is not a JSON value; nothing was changed. Numbers are written "
                'plain, words in double quotes: 0.5, true, "text"'
            ) from error
    return json.dumps({n: v for n, v in merged.items() if v is not None}, sort_keys=True)


def read_overrides(text: str) -> dict[str, JsonValue]:
    """Read a JSON object of dotted names to values; raises InvalidSettings if it is none."""
    try:
        return _OBJECT.validate_json(text)
    except ValidationError as error:
        raise InvalidSettings(
            "overrides must be one JSON object of dotted names to values; nothing was changed"
        ) from error


def _unknown(name: str, known: Mapping[str, str]) -> str:
    return f"{name} is not a setting that operators may change; {near(name, known)}"


def _leaves(tree: Mapping[str, JsonValue], prefix: str = "") -> Iterable[tuple[str, JsonValue]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _put(tree: dict[str, JsonValue], name: str, value: JsonValue) -> None:
    *sections, leaf = name.split(".")
    for section in sections:
        inner = tree[section]
        assert isinstance(inner, dict)
        tree = inner
    tree[leaf] = value
