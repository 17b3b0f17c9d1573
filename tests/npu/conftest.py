"""Runs scripts of this folder beside the real torch_npu, each in a process of its own.

torch_npu patches torch when it is imported, and breaks a plain `import torch` wherever it is
installed without CANN; so it stays in a folder of its own and out of the test's process.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.npu.stubs import build

WHEEL = ROOT / "build/torch-npu-2.13.0"
RunScript = Callable[..., str]


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The folder that torch-npu 2.13.0 is installed in. Its absence is a failure, not a skip."""
    if not (WHEEL / "torch_npu/lib/libtorch_npu.so").is_file():
        pytest.fail(
            f"torch-npu is not in {WHEEL.relative_to(ROOT)} (make npu-wheel puts it there): the "
            "Ascend calls were NOT checked"
        )
    return WHEEL


@pytest.fixture(scope="session")
def beside_torch_npu(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> RunScript:
    """Run a module of tests.npu beside torch_npu and return what it printed."""
    stubs = tmp_path_factory.mktemp("cann-stand-ins")
    build(wheel / "torch_npu", stubs)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(wheel))),
        "LD_LIBRARY_PATH": str(stubs),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("ASCEND_HOME_PATH", None)

    def run(module: str, *arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", f"tests.npu.{module}", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-5000:]
        return ended.stdout

    return run
