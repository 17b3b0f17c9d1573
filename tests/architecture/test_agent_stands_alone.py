"""The agent runs beside a serving engine on the base install: no Ray, nothing of the service."""

import importlib.util
import subprocess
import sys

import pytest

from tests.architecture.sources import ROOT

IMPORT_WITHOUT = """
import sys

ABSENT = {"ray", "numba", "prometheus_client", "grpc_health", "grpc_reflection", "yaml"}


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r} (in the base install)", name=name)
        return None


sys.meta_path.insert(0, NotInstalled())
import worker_agent.main
"""


@pytest.mark.slow
def test_the_agent_is_imported_without_the_service_extra() -> None:
    if importlib.util.find_spec("worker_agent.main") is None:
        return
    imported = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert imported.returncode == 0, imported.stderr
