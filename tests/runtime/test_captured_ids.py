"""Captured ids are the router's, of the tokens that were asked for, or there are none."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from moe_runtime.capture.step import StepRecorder
from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.exchange_errors import CaptureUnavailable
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    Captured,
    Concatenated,
    ExchangeMode,
    MoeRuntime,
    OwnRows,
    PaddedBlocks,
    Phase,
    RowLayout,
    Shards,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
    id_dtype,
    narrow,
    own_rows,
    refuse_impossible,
)
from tests.runtime.routings import KINDS, stack_of, token_ids
from tests.runtime.stacks import random_layout, tokens


def ids(*rows: int) -> LogicalIds:
    return LogicalIds(torch.tensor(rows)[:, None])


@pytest.mark.parametrize(
    ("layout", "captured", "rank", "want"),
    [
        (PaddedBlocks((3, 1), 3), ids(1, 2, 3, 4, 0, 0), 0, [1, 2, 3]),
        (PaddedBlocks((3, 1), 3), ids(1, 2, 3, 4, 0, 0), 1, [4]),
        (Concatenated((3, 1)), ids(1, 2, 3, 4), 0, [1, 2, 3]),
        (Concatenated((3, 1)), ids(1, 2, 3, 4), 1, [4]),
        (Concatenated((1, 0, 1)), ids(5, 6), 1, []),
        (OwnRows(), ids(7), 1, [7]),
        (Shards((2, 1), (2, 2)), ids(1, 2, 3, 0), 1, [1, 2, 3]),
        (Shards((1, 0), (1, 1)), ids(9, 0), 0, [9]),
    ],
)
def test_the_layout_tells_whose_rows_they_are(
    layout: RowLayout, captured: LogicalIds, rank: int, want: list[int]
) -> None:
    own = own_rows(captured, layout, rank=rank)
    assert own.ids_TK.reshape(-1).numpy().tolist() == want


@pytest.mark.parametrize(
    "layout",
    [
        Concatenated((3, 2)),
        PaddedBlocks((3, 1), 4),
        PaddedBlocks((3, 1), 2),
        Shards((1,), (2, 2)),
        Shards((3, 0), (2, 2)),
    ],
)
def test_ids_of_another_layout_are_refused_and_not_guessed_at(layout: RowLayout) -> None:
    with pytest.raises(ShapeMismatch):
        own_rows(ids(1, 2, 3, 4), layout, rank=0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([0.0, 1.0], "expected integers"),
        ([0, 8], "0 to 7"),
        ([-1, 2], "0 to 7"),
        ([True, False], "expected integers"),
    ],
)
def test_ids_that_no_router_could_have_chosen_are_no_data(row: list[float], told: str) -> None:
    with pytest.raises(CaptureUnavailable, match=told):
        refuse_impossible(torch.tensor([row]), num_experts=8)


@pytest.mark.parametrize(
    ("num_experts", "dtype"),
    [(256, torch.uint8), (257, torch.int16), (32768, torch.int16), (32769, torch.int32)],
)
def test_ids_are_held_by_integers_that_hold_them_all(num_experts: int, dtype: torch.dtype) -> None:
    assert id_dtype(num_experts) is dtype
    top = torch.tensor([num_experts - 1])
    assert int(narrow(top, dtype)) == num_experts - 1


def test_integers_that_are_too_narrow_are_refused() -> None:
    with pytest.raises(CaptureUnavailable, match=r"do not fit torch.uint8, which ends at 255"):
        narrow(torch.tensor([3, 256]), torch.uint8)
    with pytest.raises(CaptureUnavailable, match="expected integers"):
        narrow(torch.tensor([3]), torch.float16)


def test_a_layer_that_was_not_captured_or_twice_is_told() -> None:
    recorder = StepRecorder(num_layers=2, num_experts=8)
    recorder.record(1, LogicalIds(torch.tensor([[1, 2]])))
    with pytest.raises(CaptureUnavailable, match=r"layers \[0\] were never captured"):
        recorder.ids()
    with pytest.raises(CaptureUnavailable, match="layer 1 was captured twice"):
        recorder.record(1, LogicalIds(torch.tensor([[1, 2]])))


@dataclass(frozen=True, slots=True)
class Kept:
    steps: list[Captured] = field(default_factory=list[Captured])

    def take(self, captured: Captured) -> None:
        self.steps.append(captured)


@pytest.mark.parametrize("name", KINDS)
def test_a_histogram_of_captured_ids_is_what_was_sent(name: str) -> None:
    """For every kind of routing; zero experts are captured and not sent."""
    shape = stack_of(KINDS[name])
    kept = Kept()
    runtime = MoeRuntime(
        SyntheticModel(shape),
        random_layout(shape, (11,), seed=4).start(0),
        peers=Alone(),
        mode=Traffic(mode=ExchangeMode.ALL_TO_ALL, capture=kept),
    )
    x_TD, token = tokens(shape, 9, seed=1), token_ids(shape, 9, seed=1)
    for kind in (StepKind.REAL, StepKind.PROFILE, StepKind.WARMUP):
        given = Batch.of(x_TD, ByGate(), Step(kind, Phase.DECODE))
        runtime.forward(replace(given, token_ids=token))
    (captured,) = kept.steps
    assert captured.experts_TLK.shape == (9, shape.num_layers, shape.selector.top_k)
    counted = runtime.counters()
    for layer in range(shape.num_layers):
        found = captured.experts_TLK[:, layer].reshape(-1).numpy()
        counts = np.bincount(found, minlength=shape.num_candidates)
        assert (counts[: shape.num_experts] == counted.sent_HLE[Phase.DECODE, layer]).all()
        assert counts[shape.num_experts :].sum() == counted.zero_HL[Phase.DECODE, layer]
