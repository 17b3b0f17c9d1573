"""The walls stand: an import that crosses one is found.

`make walls` looks at the real code; here the same contracts are put before small houses of
paper, each with one forbidden import, and must fall for it.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.sources import HOUSES, ROOT

FORBIDDEN = [
    ("eplb_service.domain", "eplb_service.controller", "floors of eplb_service"),
    ("eplb_service.server", "eplb_service.store", "floors of eplb_service"),
    ("eplb_service.gates", "eplb_service.policies", "floors of eplb_service"),
    ("eplb_service.controller", "eplb_service.settings", "floors of eplb_service"),
    ("worker_agent.agent", "worker_agent.adapters", "floors of worker_agent"),
    ("moe_runtime.routing", "moe_runtime.experts", "floors of moe_runtime"),
    ("eplb_service.sim", "worker_agent.applier", "houses: the service"),
    ("eplb_service.domain", "torch", "houses: the service"),
    ("moe_runtime.layer", "eplb_service.domain", "houses: the runtime"),
    ("moe_runtime.runtime", "grpc", "houses: the runtime"),
    ("worker_agent.applier", "eplb_service.controller", "hall"),
    ("worker_agent.adapters", "eplb_service.settings", "hall"),
    ("worker_agent.applier", "moe_runtime.runtime", "doors: only the agent's adapters"),
    ("worker_agent.adapters", "moe_runtime.placement", "doors: only the agent's adapters"),
    ("eplb_service.controller", "ray", "doors: ray"),
    ("worker_agent.agent", "grpc", "doors: grpc"),
    ("eplb_service.controller", "eplb", "doors: generated messages"),
    ("moe_runtime.layer", "torch_npu", "doors: torch_npu"),
    ("worker_agent.main", "vllm", "doors: vllm"),
    ("eplb_service.domain", "time", "pure"),
    ("eplb_service.protocol", "random", "pure"),
    ("eplb_service.policies", "eplb_service.wire", "pure"),
    ("eplb_service.controller.planning", "asyncio", "pure"),
    ("eplb_service.controller.machine", "eplb_service.controller.shell", "pure"),
    ("eplb_service.store.left", "eplb_service.store.right", "siblings: no cycles"),
    ("eplb_service.policies.packing", "eplb_service.policies.static", "siblings: policies"),
    ("eplb_service.policies.packing", "eplb_service.policies.catalog", "siblings: policies"),
    ("moe_runtime.exchange.all_gather", "moe_runtime.exchange.all_to_all", "siblings: exchange"),
]
ROOMS = """
    eplb_service: host cli settings server store metrics sim web controller load policies gates wire
                  protocol domain clock store/left store/right controller/machine
                  controller/planning controller/shell policies/catalog policies/packing
                  policies/static
    worker_agent: main settings adapters agent applier reporter ports
    moe_runtime: runtime layer routing exchange experts backends placement contracts
                 exchange/all_gather exchange/all_to_all
"""
STANDING = {
    "eplb_service/wire": "import eplb.v1\n",
    "eplb_service/controller/shell": "import asyncio\n",
    "eplb_service/store/right": "import eplb_service.store.left\n",
    "eplb_service/host": "import ray\n",
    "eplb_service/server": "import grpc\n",
    "worker_agent/adapters": "import grpc\nimport moe_runtime.runtime\nimport eplb_service.wire\n",
}


def build_houses(ground: Path) -> None:
    """Lay out every room as a module, with the imports that are allowed."""
    house = ""
    for word in ROOMS.split():
        if word.endswith(":"):
            house = word[:-1]
            room = ground / house
        else:
            room = ground / house / word
        room.mkdir(parents=True)
        allowed = STANDING.get(str(room.relative_to(ground)), "")
        (room / "__init__.py").write_text(allowed, encoding="utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (ground / "pyproject.toml").write_text(pyproject, encoding="utf-8")


def look_at(ground: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    return subprocess.run(
        command, cwd=ground, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    build_houses(tmp_path)
    return tmp_path


def test_houses_without_a_forbidden_import_stand(ground: Path) -> None:
    looked = look_at(ground)
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert "0 broken" in looked.stdout


@pytest.mark.parametrize(("room", "imported", "wall"), FORBIDDEN)
def test_a_forbidden_import_brings_its_wall_down(
    ground: Path, room: str, imported: str, wall: str
) -> None:
    module = ground / room.replace(".", "/") / "__init__.py"
    with module.open("a", encoding="utf-8") as file:
        file.write(f"import {imported}\n")
    looked = look_at(ground)
    broken = [line for line in looked.stdout.splitlines() if re.search(r"BROKEN( \(|$)", line)]
    assert looked.returncode == 1, looked.stdout + looked.stderr
    assert any(line.startswith(wall) for line in broken), looked.stdout


def test_a_room_that_nobody_drew_is_noticed(ground: Path) -> None:
    (ground / "eplb_service" / "attachment").mkdir()
    (ground / "eplb_service" / "attachment" / "__init__.py").touch()
    assert look_at(ground).returncode == 1


def test_the_walls_enclose_every_house() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)
    assert settings["tool"]["importlinter"]["root_packages"] == list(HOUSES)
