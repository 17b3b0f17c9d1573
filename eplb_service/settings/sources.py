"""Where settings come from: defaults, below a file, below the environment.

A file is YAML or JSON. Environment variables are EPLB_SECTION__FIELD, for example
EPLB_STORE__URL or EPLB_GATES__MIN_GAIN; values that are no plain word are JSON.
"""

import os
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsError,
)

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.json_text import read_json
from eplb_service.domain.variables import misspelt
from eplb_service.settings.complaints import complaints
from eplb_service.settings.doors import require_locked_doors
from eplb_service.settings.settings import Settings
from eplb_service.settings.yaml_text import read_yaml

_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


class _FromEnvironment(Settings):
    """The same settings, with the environment over what is passed in."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Name the sources, strongest first."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings


def load_settings(file: Path | None = None) -> Settings:
    """Read settings; raises InvalidSettings that lists everything that is wrong, or open doors."""
    given = read_file(file) if file else {}
    unknown = misspelt(os.environ)
    try:
        loaded = _FromEnvironment.model_validate(given)
    except ValidationError as error:
        raise InvalidSettings("; ".join([complaints(error), *unknown])) from error
    except SettingsError as error:
        raise InvalidSettings("; ".join([f"environment: {error}", *unknown])) from error
    if unknown:
        raise InvalidSettings("; ".join(unknown))
    settings = Settings.model_validate(loaded.model_dump())
    require_locked_doors(settings)
    return settings


def read_file(file: Path) -> dict[str, JsonValue]:
    """Read a settings file; raises InvalidSettings where it is not one tree of settings."""
    form = "JSON" if file.suffix == ".json" else "YAML"
    try:
        text = file.read_text(encoding="utf-8")
        tree = read_json(text) if form == "JSON" else read_yaml(text)
        return _OBJECT.validate_python({} if tree is None else tree)
    except OSError as error:
        raise InvalidSettings(f"settings file {file}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidSettings(
            f"settings file {file} is not one {form} object of sections: {_why(error)}"
        ) from error


def _why(error: ValueError) -> str:
    match error:
        case ValidationError():
            return "it holds something else"
        case UnicodeDecodeError():
            return "it is no text in UTF-8"
        case _:
            return str(error)
