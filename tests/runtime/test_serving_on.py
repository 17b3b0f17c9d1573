"""Ranks that live serve on without the dead: over the rows that they hold, and what a source gives.

Axes    L layers   E experts   S local slots
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from moe_runtime.contracts.errors import ShapeMismatch
from moe_runtime.contracts.exchange_errors import GroupLost, RanksDisagree
from moe_runtime.contracts.survival_errors import ExpertsLost
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.runtime import (
    EMPTY,
    NO_SOURCE,
    Batch,
    ByGate,
    Checkpoint,
    DenseReference,
    ExchangeMode,
    ExpertSource,
    HostBackup,
    MoeRuntime,
    Packing,
    Peers,
    Phase,
    SlotLayout,
    Start,
    Step,
    StepKind,
    SyntheticModel,
    WeightFormat,
    serve_on,
)
from moe_runtime.runtime.model import UNPACKED
from moe_runtime.runtime.sources import Sourced
from tests.runtime.stacks import kimi_like, tokens
from tests.runtime.threads import run_threads

SHAPE = kimi_like(num_experts=6, top_k=2)
MODEL = SyntheticModel(SHAPE)
BEFORE = [[0, 1, 2], [3, 4, 5], [0, 3, 5]]
"""F42-H; rank 1 dies."""
AFTER = [[4, 1, 2], [0, 3, 5]]
MODE = ExchangeMode.ALL_TO_ALL
LIVING = (0, 2)

Row = Sequence[Sequence[int]]


def start(rows: Row, rank: int) -> Start:
    flat = [expert for row in rows for expert in row]
    table = [[flat.index(expert)] for expert in range(SHAPE.num_experts)]
    layout = SlotLayout(tuple(len(row) for row in rows))
    return Start(layout, [rows[rank]] * 2, [table] * 2, staging_rows=1)


def serving(packing: Packing = UNPACKED) -> list[MoeRuntime]:
    def build(peers: Peers) -> MoeRuntime:
        return MoeRuntime(MODEL, start(BEFORE, peers.rank), peers=peers, mode=MODE, packing=packing)

    return run_threads(build, num_ranks=3)


def served_on(
    before: Sequence[MoeRuntime], source: Callable[[MoeRuntime], ExpertSource], rows: Row = AFTER
) -> list[MoeRuntime]:
    def go_on(peers: Peers) -> MoeRuntime:
        mine = before[LIVING[peers.rank]]
        return serve_on(mine, start(rows, peers.rank), peers=peers, mode=MODE, source=source(mine))

    return run_threads(go_on, num_ranks=2)


def require_right(runtimes: Sequence[MoeRuntime], tolerance: float = 1e-4) -> None:
    def step(peers: Peers) -> None:
        x_TD = tokens(SHAPE, 7, seed=peers.rank)
        got = runtimes[peers.rank].forward(
            Batch.of(x_TD, ByGate(), Step(StepKind.REAL, Phase.DECODE))
        )
        want = DenseReference(MODEL).forward(x_TD, ByGate()).float()
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)

    run_threads(step, num_ranks=len(runtimes))


def test_f42_the_ranks_that_live_serve_right_once_the_lost_expert_is_loaded() -> None:
    before = serving()
    kept = [before[rank].slots.weights(0).named() for rank in LIVING]
    after = served_on(before, Checkpoint)
    assert [runtime.held().tolist() for runtime in after] == [[row] * 2 for row in AFTER]
    for old, runtime in zip(kept, after, strict=True):
        new = runtime.slots.weights(0).named()
        assert {n: t.data_ptr() for n, t in old.items()} == {
            n: t.data_ptr() for n, t in new.items()
        }
    require_right(after)
    assert after[0].counters().received_HLS.sum() > 0


def test_quantised_rows_are_kept_and_filled_byte_for_byte() -> None:
    packing = Packing(WeightFormat.W8A8)
    after = served_on(serving(packing), Checkpoint)
    (whole,) = run_threads(
        lambda peers: MoeRuntime(
            MODEL, start([[*range(6)]], 0), peers=peers, mode=MODE, packing=packing
        ),
        num_ranks=1,
    )
    for rank, runtime in enumerate(after):
        for slot, expert in enumerate(AFTER[rank]):
            got, want = runtime.slots.expert_tensors(1, slot), whole.slots.expert_tensors(1, expert)
            assert all(torch.equal(got[name], want[name]) for name in want)


def test_what_served_before_serves_no_more() -> None:
    before = serving()
    served_on(before, Checkpoint)
    with pytest.raises(GroupLost, match="serve on"):
        before[0].set_table(0, before[0].tables()[0])


def test_a_backup_in_memory_gives_what_was_put_there_without_the_model() -> None:
    before = serving()
    backups = {
        id(mine): HostBackup.of(Checkpoint(mine), [(layer, 4) for layer in range(2)])
        for mine in before
    }
    for mine in before:
        mine.model = _Gone(SHAPE)
    require_right(served_on(before, lambda mine: backups[id(mine)]))


@dataclass(frozen=True)
class _Gone(SyntheticModel):
    """A model of which no expert can be read any more; what lies beside them is kept."""

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        raise AssertionError(f"expert {expert} of layer {layer} was read in {dtype}")


def test_a_backup_that_rotted_is_refused_on_all_ranks_and_named() -> None:
    def rotten(mine: MoeRuntime) -> ExpertSource:
        backup = HostBackup.of(Checkpoint(mine), [(0, 4), (1, 4)])
        kept = backup.find(0, 4)
        assert kept is not None
        kept.tensors["w2"][0] += 1
        return backup

    told = refused(serving(), rotten)
    assert "expert 4 of layer 0" in told[0]
    assert "host backup" in told[0]
    assert "rank 0" in told[1]


class Unreadable(Checkpoint):
    """A checkpoint whose file is gone."""

    def find(self, layer: int, expert: int) -> Sourced | None:
        raise FileNotFoundError(2, "No such file", f"{layer}.{expert}")


def test_a_source_that_fails_on_one_rank_is_told_on_all_and_keeps_nobody_waiting() -> None:
    told = refused(serving(), Unreadable)
    assert "expert 4 of layer 0 cannot be read: FileNotFoundError" in told[0]
    assert "rank 0 lacks 2" in told[1]


def test_without_a_source_the_lost_experts_are_named_and_nobody_serves() -> None:
    before = serving()
    told = refused(before, lambda _: NO_SOURCE)
    assert "no source" in told[0]
    assert all(f"expert 4 of layer {layer} is not there" in told[0] for layer in range(2))
    assert all("start the group again" in text for text in told)
    assert before[0].held().tolist() == [[EMPTY, 1, 2]] * 2, "what was given up is not called full"
    require_right(served_on(before, Checkpoint))


def refused(
    before: Sequence[MoeRuntime], source: Callable[[MoeRuntime], ExpertSource]
) -> list[str]:
    def attempt(peers: Peers) -> str:
        mine = before[LIVING[peers.rank]]
        given = start(AFTER, peers.rank)
        with pytest.raises(ExpertsLost) as told:
            serve_on(mine, given, peers=peers, mode=MODE, source=source(mine))
        return str(told.value)

    return run_threads(attempt, num_ranks=2)


def test_a_kept_slot_that_does_not_hold_what_its_replica_does_is_found_out() -> None:
    before = serving()
    before[0].slots.expert_tensors(1, 2)["w2"] += 1
    served = [[0, 1, 2], [2, 4, 3]]

    def attempt(peers: Peers) -> str:
        mine = before[LIVING[peers.rank]]
        given = start([*served, [5]], peers.rank)
        given = replace(given, layout=SlotLayout((3, 3)), tables_LEJ=_without_5(served))
        with pytest.raises(RanksDisagree) as told:
            serve_on(mine, given, peers=peers, mode=MODE, source=Checkpoint(mine))
        return str(told.value)

    assert all("expert 2 of layer 1" in text for text in run_threads(attempt, num_ranks=2))


def _without_5(rows: Row) -> list[list[list[int]]]:
    flat = [expert for row in rows for expert in row]
    return [[[flat.index(e) if e in flat else EMPTY] for e in range(SHAPE.num_experts)]] * 2


def test_other_slots_than_the_rank_has_are_refused_before_anything_is_changed() -> None:
    before = serving()
    held = np.array(before[0].held())

    def attempt(peers: Peers) -> None:
        mine = before[LIVING[peers.rank]]
        given = start([[4, 1], [0, 3, 5, 2]], peers.rank)
        with pytest.raises(ShapeMismatch, match="slots"):
            serve_on(mine, given, peers=peers, mode=MODE, source=Checkpoint(mine))

    run_threads(attempt, num_ranks=2)
    assert np.array_equal(before[0].held(), held)
    before[0].set_table(0, before[0].tables()[0])
