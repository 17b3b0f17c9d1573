"""The chart, rendered by the real helm."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.architecture.sources import ROOT
from tests.deploy.trees import Json

CHART = ROOT / "deploy" / "helm" / "eplb"
TOOLS = ROOT / "build" / "tools"
MAJORS = ("3", "4")
MONITORING = "monitoring.coreos.com/v1"
NAMESPACE = "moe"
HELM_S = 60.0

EXISTING: Json = {
    "mode": "existingRay",
    "ray": {
        "auth": {"existingSecret": "ray-token"},
        "existing": {
            "address": "ray://serving-head-svc:10001",
            "podLabels": {"ray.io/cluster": "serving", "ray.io/group": "eplb"},
        },
    },
}
"""The least that mode existingRay needs."""
MODES: Mapping[str, Json] = {
    "rayCluster": {},
    "deployment": {"mode": "deployment"},
    "existingRay": EXISTING,
}


@dataclass(frozen=True)
class Target:
    """The cluster that is rendered for."""

    kube: str = "1.37.0"
    apis: tuple[str, ...] = ()
    release: str = "eplb"


@dataclass(frozen=True)
class Ended:
    """How helm ended."""

    code: int
    text: str
    complaint: str


def helm(major: str) -> Path:
    """The program of that major version; the Makefile fetches it."""
    found = TOOLS / f"helm-{major}" / "helm"
    assert found.exists(), f"{found} is missing: run `make chart-tools`"
    return found


def run(major: str, *words: str, values: Json | None = None) -> Ended:
    """Run helm with values on its standard input."""
    given = () if values is None else ("--values", "-")
    done = subprocess.run(
        [str(helm(major)), *words, *given],
        input=None if values is None else json.dumps(values),
        capture_output=True,
        text=True,
        timeout=HELM_S,
        check=False,
    )
    complaint = "\n".join(
        line for line in done.stderr.splitlines() if "found symbolic link" not in line
    )
    return Ended(done.returncode, done.stdout, complaint)


def template(major: str, values: Json, target: Target | None = None, *more: str) -> Ended:
    """Render without a cluster."""
    to = target or Target()
    apis = [word for api in to.apis for word in ("--api-versions", api)]
    words = (
        "template",
        to.release,
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--kube-version",
        to.kube,
    )
    return run(major, *words, *apis, *more, values=values)


def render(values: Json, target: Target | None = None, *, major: str = "4") -> list[Json]:
    """Render, and return the objects; fails with helm's own words."""
    done = template(major, values, target)
    assert done.code == 0, done.complaint
    assert not done.complaint, done.complaint
    return objects(done.text)


def objects(text: str) -> list[Json]:
    """The objects of rendered manifests."""
    return [found for found in yaml.load_all(text, Loader=_loader()) if found]


@cache
def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def of_kind(found: Sequence[Json], kind: str) -> list[Json]:
    """Those of one kind."""
    return [one for one in found if one["kind"] == kind]


def named(found: Sequence[Json], kind: str, name: str) -> Json:
    """The one of this kind and name."""
    (only,) = (one for one in of_kind(found, kind) if one["metadata"]["name"] == name)
    return only


def pod_templates(found: Sequence[Json]) -> list[Json]:
    """Metadata and spec of every pod that the objects bring, hooks and Ray's too."""
    pods: list[Json] = []
    for one in found:
        match one["kind"]:
            case "Deployment" | "Job":
                pods.append(one["spec"]["template"])
            case "Pod":
                pods.append(one)
            case "RayCluster":
                groups = [one["spec"]["headGroupSpec"], *one["spec"]["workerGroupSpecs"]]
                pods += [group["template"] for group in groups]
            case _:
                continue
    return pods


def containers(found: Sequence[Json]) -> list[Json]:
    """Every container of every pod."""
    return [one for pod in pod_templates(found) for one in pod["spec"]["containers"]]
