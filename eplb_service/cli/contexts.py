"""Named controllers, kept in a file of the user: which one commands talk to by default.

Format    TOML: `version = 1`, `current`, and a table [contexts.NAME] with `endpoint`,
          `deployment` and what cli.keys knows; in $EPLB_CONTEXTS, else
          $XDG_CONFIG_HOME/eplb/contexts.toml, else ~/.config/eplb/contexts.toml
"""

import json
import os
import tomllib
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, StringConstraints, ValidationError

from eplb_service.cli.endpoints import endpoint
from eplb_service.cli.ends import Exit, Failure, invalid
from eplb_service.cli.files import read_bytes, write_whole
from eplb_service.cli.keys import Keys

FILE_VARIABLE = "EPLB_CONTEXTS"
CONTEXT_VARIABLE = "EPLB_CONTEXT"
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


def _checked(text: str) -> str:
    try:
        return endpoint(text)
    except ArgumentTypeError as error:
        raise ValueError(str(error)) from error


class Context(Keys, frozen=True, extra="forbid"):
    """One named controller, and the keys for it."""

    endpoint: Annotated[str, AfterValidator(_checked)]
    deployment: str = ""
    """Empty: the only one there is."""

    def told(self) -> dict[str, str | bool]:
        """Return what the file says of it: endpoint and deployment, and the keys that there are."""
        keys = self.model_dump(exclude_defaults=True, exclude={"endpoint", "deployment"})
        return {"endpoint": self.endpoint, "deployment": self.deployment, **keys}


class Contexts(BaseModel, frozen=True, extra="forbid"):
    """All that the file says."""

    version: Literal[1] = 1
    current: Name | None = None
    contexts: dict[Name, Context] = {}

    def named(self, name: str) -> Context:
        """Return a context; raises Failure that lists those there are."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none yet, `eplbctl context set` adds one"
            raise Failure(Exit.FAILED, f"no context is named {name!r}; there are: {known}")
        return self.contexts[name]


def contexts_file() -> Path:
    """Where contexts are kept."""
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "eplb" / "contexts.toml"


def read_contexts() -> Contexts:
    """Read the file, or say that there are none; raises Failure where it makes no sense."""
    path = contexts_file()
    if not path.exists():
        return Contexts()
    try:
        return Contexts.model_validate(tomllib.loads(read_bytes(path).decode()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise invalid(f"{path}: {where}: {first['msg']}; correct it or remove the file") from error
    except ValueError as error:
        raise invalid(f"{path} is no TOML: {error}; correct it or remove the file") from error


def write_contexts(kept: Contexts) -> None:
    """Put the file in the place of what was there; raises Failure with that untouched."""
    path = contexts_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(Exit.FAILED, f"{path.parent} cannot be made: {error.strerror}") from error
    lines = ["version = 1"]
    lines += [f"current = {_quoted(kept.current)}"] if kept.current else []
    for name, context in sorted(kept.contexts.items()):
        lines += [
            "",
            f"[contexts.{_quoted(name)}]",
            *(f"{name} = {_value(value)}" for name, value in context.told().items()),
        ]
    write_whole(path, ("\n".join(lines) + "\n").encode())


def chosen(args: Namespace) -> Context | None:
    """Return the context that a command line asks for or the file holds; raises Failure."""
    named: str = vars(args).get("context") or os.environ.get(CONTEXT_VARIABLE, "")
    if named:
        return read_contexts().named(named)
    kept = read_contexts()
    return kept.named(kept.current) if kept.current else None


def _value(value: str | bool) -> str:  # noqa: FBT001 -- any value of the file
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """A basic string of TOML; JSON's escapes are a part of TOML's, and DEL is the one it lacks."""
    return json.dumps(text).replace("\x7f", "\\u007f")
