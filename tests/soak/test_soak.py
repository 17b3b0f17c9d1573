"""The soak of three minutes: every fault strikes, no step is wrong or missed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.faults import FAULTS

ROOT = Path(__file__).parents[2]
MINUTES = "2"


@pytest.mark.processes
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_step_is_wrong_or_missed_whatever_strikes(tmp_path: Path) -> None:
    summary = tmp_path / "soak.json"
    soak = [sys.executable, "-m", "tests.soak.main", "--minutes", MINUTES]
    done = subprocess.run(
        [str(ROOT / "deploy/lo-only"), *soak, "--summary", str(summary)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = json.loads(summary.read_text())
    assert (told["steps_wrong"], told["steps_missed"]) == (0, 0), told["told"]
    assert len(told["by_fault"]) == len(FAULTS) <= told["faults"]
    assert told["steps"] > 2 * 150 * len(FAULTS)
    assert told["plans_settled"] >= told["faults"]
