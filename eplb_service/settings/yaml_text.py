"""YAML as people's files hold it: a key that comes twice is refused with its line."""

from collections.abc import Callable, Hashable
from typing import Any, Final, cast

import yaml

MERGE: Final = "tag:yaml.org,2002:merge"
"""Stands for the keys of other mappings, which those of its own go above."""


def read_yaml(text: str) -> object:
    """Return what a text holds; raises ValueError that says what is wrong, and where it can."""
    try:
        loader = _Loader(text)
        try:
            return cast("object", loader.get_single_data())
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError("not read: it is nested too deep") from error
    except _Twice:
        raise
    except ValueError as error:
        raise ValueError("not read: it holds a number or a date that is none") from error


class _Twice(ValueError):
    pass


class _Loader(yaml.SafeLoader):
    """Plain values, and no key twice in one mapping."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002 -- as the loader calls it
    ) -> dict[Hashable, Any]:
        """Build one mapping; raises ValueError where a key of its own comes twice."""
        if node.id == yaml.MappingNode.id:  # a tag may call something else a mapping
            self._require_keys_once(node)
        return super().construct_mapping(node, deep)

    def _require_keys_once(self, node: yaml.MappingNode) -> None:
        lines: dict[Hashable, int] = {}
        known = cast("object", self.construct_object)
        build = cast("Callable[[yaml.Node], object]", known)
        names = [key for key, _ in node.value if _is_name(key)]
        for key in names:
            name = build(key)
            if not isinstance(name, Hashable):
                continue
            line = key.start_mark.line + 1
            if name in lines:
                raise _Twice(
                    f"{key.value} occurs twice in one mapping, in line {line}"
                    + (f" and in line {lines[name]}" if lines[name] != line else "")
                )
            lines[name] = line


def _is_name(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.tag != MERGE
