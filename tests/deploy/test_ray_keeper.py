"""The chart's keeper on a real Ray of three nodes: the controller comes back, and is fenced."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.deploy.helm import containers, named, render
from tests.deploy.trees import Json

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.ray,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

WALK_S = 560.0


def ray_environment(cluster: Json) -> dict[str, str]:
    """What the chart has Ray's nodes run with, head and workers alike."""
    told = [entry for one in containers([cluster]) for entry in one["env"]]
    return {e["name"]: e["value"] for e in told if e["name"].startswith(("RAY_", "GRPC_"))}


@pytest.fixture(scope="module")
def seen() -> Iterator[Mapping[str, object]]:
    """What the walk saw; its folder is short, since Ray puts sockets into it."""
    rendered = render({})
    (keeper,) = containers([named(rendered, "Deployment", "eplb-keeper")])
    program, *words = keeper["command"]
    assert program == "eplb-service"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("EPLB_", "RAY_"))}
    with tempfile.TemporaryDirectory(prefix="eplb-", ignore_cleanup_errors=True) as folder:
        walk = [sys.executable, "-m", "tests.deploy.ray_walk", folder, *map(str, words)]
        done = subprocess.run(
            [str(ROOT / "deploy" / "lo-only"), *walk],
            cwd=ROOT,
            env={**own, **ray_environment(named(rendered, "RayCluster", "eplb"))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WALK_S,
            check=False,
        )
        logs = "\n".join(p.read_text(errors="replace")[-3000:] for p in Path(folder).glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr[-6000:] + logs
        told = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert told, f"the walk told nothing: {done.stdout[-2000:]}{done.stderr[-6000:]}{logs}"
        yield json.loads(told[-1])


def test_every_misfortune_brings_the_next_generation(seen: Mapping[str, object]) -> None:
    told = [
        seen[name]
        for name in (
            "at first",
            "after a kill",
            "after a lost node",
            "after the actor was forgotten",
        )
    ]
    assert told == [1, 2, 3, 4], "each fences the one before"
    assert seen["keeper lives"] is True
    assert seen["niceness"] == 0, "on a busy node it must not wait for everybody else"
