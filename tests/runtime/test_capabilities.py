"""What cannot be honoured is refused by name when a model is loaded, and the table says so."""

import json
import subprocess
import sys

import pytest
import torch

from moe_runtime.contracts.errors import Unsupported
from moe_runtime.formats.capabilities import Asked, DeviceKind, refusals, require
from moe_runtime.runtime import (
    Alone,
    ExchangeMode,
    MoeRuntime,
    Packing,
    SyntheticModel,
    WeightFormat,
)
from moe_runtime.runtime.capability_report import main, table
from tests.runtime.stacks import kimi_like, random_layout


def asked(
    weights: WeightFormat = WeightFormat.W8A8,
    device: DeviceKind = DeviceKind.A3,
    mode: str = "fused_mc2",
    activation: str = "SwiGLU",
) -> Asked:
    return Asked(
        format=weights, dtype=torch.bfloat16, mode=mode, device=device, activation=activation
    )


def test_everything_that_speaks_against_it_is_named_at_once() -> None:
    wrong = Asked(
        format=WeightFormat.W4A4_MXFP4,
        dtype=torch.float32,
        mode="fused_mc2",
        device=DeviceKind.A3,
        activation="SwiGLUOAI",
        limited=True,
        biased=True,
        lora=True,
    )
    with pytest.raises(Unsupported, match="cannot serve w4a4-mxfp4 weights in fused_mc2") as told:
        require(wrong)
    for reason in (
        "float8 and float4 need an A5",
        "fused MC2 reads W8A8, W4A8 and unquantised weights only",
        "fused MC2 computes SwiGLU, not SwiGLUOAI",
        "fused MC2 has no place for experts' biases",
        "LoRA reads rows as they are",
        "nothing was loaded",
    ):
        assert reason in str(told.value)


def test_the_fused_operator_for_unquantised_weights_is_not_trusted_with_a_limit() -> None:
    for weights, refused in ((WeightFormat.UNQUANTISED, True), (WeightFormat.W8A8, False)):
        limited = Asked(
            format=weights,
            dtype=torch.bfloat16,
            mode="fused_mc2",
            device=DeviceKind.A3,
            activation="SwiGLU",
            limited=True,
        )
        drops = "fused MC2 drops the limit of SwiGLU for unquantised weights"
        assert (drops in refusals(limited)) is refused


def test_what_the_ascend_backend_has_no_call_for_is_in_the_table() -> None:
    def reasons(weights: WeightFormat, mode: str, device: DeviceKind) -> str:
        dtype = torch.float16 if device is DeviceKind.P310 else torch.bfloat16
        asked = Asked(
            format=weights, dtype=dtype, mode=mode, device=device, activation="SwiGLU", lora=True
        )
        return "; ".join(refusals(asked))

    fused = reasons(WeightFormat.W8A8, "fused_mc2", DeviceKind.A3)
    assert "not built" not in fused
    int4 = reasons(WeightFormat.W4A8, "fused_mc2", DeviceKind.A3)
    assert "fused MC2 of W4A8 is not built" in int4
    assert "fused MC2 has no place between its linears for LoRA" in fused
    assert not reasons(WeightFormat.W4A16, "all_to_all", DeviceKind.A2)
    for weights in (WeightFormat.W4A8_MXFP, WeightFormat.W4A16_MXFP4):
        assert "npu_format_cast" in reasons(weights, "mc2", DeviceKind.A5)
    assert "not built" in reasons(WeightFormat.W8A8, "all_gather", DeviceKind.P310)
    assert not reasons(WeightFormat.W4A4_MXFP4, "mc2", DeviceKind.CPU).count("not built")


@pytest.mark.parametrize("weights", WeightFormat)
@pytest.mark.parametrize("activation", ["SwiGLU", "SwiGLUOAI", "SiTU", "GELU"])
def test_the_specification_computes_every_format_and_activation(
    weights: WeightFormat, activation: str
) -> None:
    assert not refusals(asked(weights, DeviceKind.CPU, "all_gather", activation))


def test_a_runtime_of_a_dtype_that_no_model_has_is_not_built() -> None:
    shape = kimi_like()
    start = random_layout(shape, (9,), seed=1).start(0)
    with pytest.raises(Unsupported, match=r"torch.int8 is no dtype of a model.*nothing was loaded"):
        MoeRuntime(
            SyntheticModel(shape),
            start,
            peers=Alone(),
            mode=ExchangeMode.ALL_GATHER,
            dtype=torch.int8,
            packing=Packing(WeightFormat.W8A8),
        )


def test_the_table_has_every_combination_once() -> None:
    entries = table()
    keys = {(e["device"], e["mode"], e["format"], e["what"]) for e in entries}
    assert len(keys) == len(entries)
    named = {(e["device"], e["mode"], e["format"]) for e in entries}
    assert len(named) == len(DeviceKind) * len(ExchangeMode) * len(WeightFormat)
    assert all(bool(e["reasons"]) is not e["allowed"] for e in entries)


def test_the_table_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capabilities"]) == 0
    text = capsys.readouterr().out
    for weights in WeightFormat:
        assert weights.value in text
    assert "were never run" in text


@pytest.mark.slow
def test_the_table_is_printed_for_programs() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "moe_runtime", "capabilities", "--json"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(ended.stdout) == table()
