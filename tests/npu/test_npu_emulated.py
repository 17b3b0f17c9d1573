"""The unmodified Ascend backend on emulated kernels against the CPU backend. No NPU takes part."""

import pytest

from tests.npu.conftest import RunScript
from tests.npu.emulated import FUSED, PACKINGS

pytestmark = [pytest.mark.npu_emulated, pytest.mark.processes, pytest.mark.slow]


def test_emulated_layers_equal_the_cpu_backend_in_every_mode(beside_torch_npu: RunScript) -> None:
    """Two ranks over gloo, every format built, uneven ranks and ranks without tokens."""
    told = [line for line in beside_torch_npu("emulated").splitlines() if " rank " in line]
    steps = 2 * (len(PACKINGS) * 4 + len(FUSED)) * 3
    assert len(told) == steps, "two ranks, all formats by four ways, fused ones by one more"
    assert sum(line.startswith("fused_mc2") for line in told) == 2 * len(FUSED) * 3
