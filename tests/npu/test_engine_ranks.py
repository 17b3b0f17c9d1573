"""What the hardware tests run on NPUs, run on CPUs: it works, and says nothing about an NPU."""

import pytest

from moe_runtime.runtime import ExchangeMode, WeightFormat
from tests.npu.engine_ranks import Asked, errors_of, most_of
from tests.runtime.ranks import run_ranks


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "stored"),
    [
        (ExchangeMode.MC2, WeightFormat.UNQUANTISED),
        (ExchangeMode.ALL_TO_ALL, WeightFormat.W4A8),
        (ExchangeMode.ALL_GATHER, WeightFormat.W4A4_MXFP4),
    ],
)
def test_the_script_of_the_hardware_tests_works(mode: ExchangeMode, stored: WeightFormat) -> None:
    for before, after in run_ranks(errors_of, Asked("cpu", mode, stored, 2), num_ranks=2):
        assert before == after < most_of(stored)
