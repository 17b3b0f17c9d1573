"""The tables of quantised checkpoints in docs/vllm.md are what the code honours and refuses."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from moe_runtime.vllm import CannotOwn
from moe_runtime.vllm import formats as the_formats
from moe_runtime.vllm.formats import KNOWN, scheme_of
from tests.runtime.test_vllm_formats import PREFIX, Args, Config, layer
from tests.vllm.checkpoints import FORMS, IN_ANY_RUN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "vllm.md"
INT4, INT8 = Args(4, "int", "group", 32), Args(8, "int", "channel")
ROWS_INT8 = Args(8, "int", "token", dynamic=True)
REFUSED = {
    "int4 with zero points": Config(Args(4, "int", "group", 32, symmetric=False), None),
    "int4 with rows of int8": Config(INT4, ROWS_INT8),
    "int8 with rows as they are": Config(INT8, None),
    "int8 with a scale of rows from the checkpoint": Config(INT8, Args(8, "int", "tensor")),
    "float8 by block, as DeepSeek-V3 has it": Config(
        Args(8, "float", "block"), Args(8, "float", "group", 128, dynamic=True)
    ),
    "float4 with scales of float8 (NVFP4)": Config(Args(4, "float", "tensor_group", 16), None),
    "matrices of one expert in different ways": Config(INT4, None, ignored=("down_proj",)),
    "another method (fp8, GPTQ, AWQ, ModelOpt, Quark, mxfp4, Ascend's own)": SimpleNamespace(
        get_name=lambda: "fp8"
    ),
}


def rows_after(heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the table that has this heading."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_formats_that_are_told_are_those_that_are_honoured() -> None:
    told = {(weights, rows): form.strip("`") for weights, rows, form, *_ in rows_after("weights")}
    assert told == {words: scheme.format.value for words, scheme in KNOWN.items()}


def test_what_is_told_to_be_served_by_real_vllm_is_what_its_tests_serve() -> None:
    told = {
        (weights, rows): served
        for weights, rows, _, served in rows_after("weights")
        if served != "no"
    }
    want = {
        form.words: "`make test-vllm`" if name in IN_ANY_RUN else "`-m vllm`"
        for name, form in FORMS.items()
    }
    assert told == want


def test_what_is_told_to_be_refused_is_refused_in_these_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(the_formats, "NEEDS", ())
    told = dict(rows_after("checkpoint"))
    assert told.keys() == REFUSED.keys()
    for what, text in told.items():
        with pytest.raises(CannotOwn) as refused:
            scheme_of(REFUSED[what], layer(), PREFIX)
        assert text in str(refused.value), what
