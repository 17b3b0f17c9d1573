"""KubeRay's definition of RayCluster as a JSON Schema that refuses what it does not know."""

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.deploy.trees import Json, is_list, is_tree

DEFINITION = Path(__file__).parent / "data" / "ray.io_rayclusters.yaml.gz"
FOREIGN = ("description", "nullable", "format", "example")
"""Keys of a structural schema that JSON Schema does not have, or not so."""


def complaints(cluster: Json) -> list[str]:
    """What the definition has against an object; empty when nothing."""
    return [
        f"{'/'.join(map(str, wrong.absolute_path))}: {wrong.message[:200]}"
        for wrong in _validator().iter_errors(_with_defaults(cluster, _structural()))
    ]


@cache
def _structural() -> Json:
    text = gzip.decompress(DEFINITION.read_bytes())
    definition = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (served,) = (v for v in definition["spec"]["versions"] if v["name"] == "v1")
    schema: Json = served["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    return schema


@cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(_closed(_structural()))


def _closed(node: Any) -> Any:
    """Translate a structural schema; objects that name their keys take no others."""
    if not is_tree(node):
        return node
    told: Json = {}
    for key, value in node.items():
        if key == "properties":
            told[key] = {name: _closed(inner) for name, inner in value.items()}
        elif key in ("items", "additionalProperties"):
            told[key] = _closed(value)
        elif key not in FOREIGN and not key.startswith("x-kubernetes"):
            told[key] = value
    if node.get("x-kubernetes-int-or-string"):
        told.pop("type", None)
        told["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if node.get("nullable") and "type" in told:
        told["type"] = [told["type"], "null"]
    is_open = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if "properties" in node and not is_open:
        told["additionalProperties"] = False
    return told


def _with_defaults(value: Any, schema: Json) -> Any:
    """Fill in defaults, as an API server does before it asks for what is required."""
    if is_list(value):
        return [_with_defaults(one, schema.get("items", {})) for one in value]
    if not is_tree(value):
        return value
    known = schema.get("properties", {})
    filled = {name: inner["default"] for name, inner in known.items() if "default" in inner}
    return {n: _with_defaults(v, known.get(n, {})) for n, v in {**filled, **value}.items()}
