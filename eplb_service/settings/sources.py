"""Where settings come from: defaults, below a file, below the environment.

A file is YAML or JSON. Environment variables are EPLB_SECTION__FIELD, for example
EPLB_STORE__URL or EPLB_GATES__MIN_GAIN; values that are no plain word are JSON.
"""

import json
import os
from pathlib import Path

import yaml
from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsError,
)

from eplb_service.domain.errors import InvalidSettings
from eplb_service.domain.variables import misspelt
from eplb_service.settings.complaints import complaints
from eplb_service.settings.doors import require_locked_doors
from eplb_service.settings.settings import Settings

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
    try:
        text = file.read_text(encoding="utf-8")
        tree = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
        return _OBJECT.validate_python({} if tree is None else tree)
    except OSError as error:
        raise InvalidSettings(f"settings file {file}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidSettings(
            f"settings file {file} is not one {'JSON' if file.suffix == '.json' else 'YAML'} "
            f"object of sections: {' '.join(str(error).split())}"
        ) from error
