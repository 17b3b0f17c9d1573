"""Real rank processes serve the schedule, and every step of every rank is checked."""

import os
import signal
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.demo import measures
from benchmarks.demo.checker import TOLERANCE, Checker
from benchmarks.demo.engine import NoAgent, Rank, serve
from benchmarks.demo.model import NUM_EXPERTS, NUM_LAYERS, SHAPE, flat_start
from benchmarks.demo.ranks import RankFailed, Ranks
from benchmarks.demo.records import Checked, Serve, StepRecord
from benchmarks.demo.supervisor import Segment, await_ready, run_segment
from benchmarks.traffic import Schedule, Traffic
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByLogits,
    DenseReference,
    ExchangeMode,
    MoeRuntime,
    Phase,
    SlotLayout,
    SyntheticModel,
)

SCHEDULE = Schedule(("c4", "arxiv"), 20, 0.02)
LAYOUT = SlotLayout((18,) * 4)


@pytest.mark.processes
@pytest.mark.slow
def test_four_ranks_serve_a_schedule_and_every_step_is_right() -> None:
    with Ranks(LAYOUT, staging_rows=2) as ranks:
        await_ready(ranks)
        segment = Segment(SCHEDULE, 0, SCHEDULE.num_steps, agent=None)
        ledger = run_segment(ranks, segment, list)

    assert ledger.is_complete
    assert measures.num_checked(ledger.error_NT) == SCHEDULE.num_steps
    assert measures.num_wrong(ledger.error_NT, tolerance=TOLERANCE) == 0
    tokens = sum(SCHEDULE.num_tokens(t, r) for t in range(SCHEDULE.num_steps) for r in range(4))
    pairs_L = ledger.load_NTL.sum(axis=(0, 1))
    assert pairs_L.tolist() == [tokens * SHAPE.selector.top_k] * NUM_LAYERS
    assert (ledger.late_s_NT >= 0).all()


@pytest.mark.processes
@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_and_no_process_is_left() -> None:
    with Ranks(LAYOUT, staging_rows=2) as ranks:
        await_ready(ranks)
        pids = ranks.pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RankFailed, match=r"rank \d"):
            run_segment(ranks, Segment(SCHEDULE, 0, SCHEDULE.num_steps, agent=None), list)

    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.processes
@pytest.mark.slow
def test_ranks_told_to_compute_on_npus_do_not_compute_on_cpus_instead() -> None:
    def serve() -> None:
        with Ranks(LAYOUT, staging_rows=2, device="npu") as ranks:
            await_ready(ranks)
            run_segment(ranks, Segment(SCHEDULE, 0, SCHEDULE.num_steps, agent=None), list)

    with pytest.raises(RankFailed, match="nothing is computed on the CPU in its place"):
        serve()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def runtime_alone() -> MoeRuntime:
    return MoeRuntime(
        SyntheticModel(SHAPE),
        flat_start(SlotLayout((NUM_EXPERTS,)), 0, staging_rows=1),
        peers=Alone(),
        mode=ExchangeMode.ALL_TO_ALL,
    )


def serve_alone(runtime: MoeRuntime, num_steps: int) -> tuple[list[StepRecord], list[Checked]]:
    steps: list[StepRecord] = []
    checks: list[Checked] = []

    def tell(more: tuple[StepRecord, ...], checked: tuple[Checked, ...]) -> None:
        steps.extend(more)
        checks.extend(checked)

    schedule = replace(SCHEDULE, interval_s=0.001)
    traffic = Traffic(schedule, width=SHAPE.width, seed=1)
    checker = Checker(DenseReference(SyntheticModel(SHAPE)), time.monotonic)
    command = Serve(schedule, 0, num_steps, agent=None)
    serve(command, Rank(0, runtime, NoAgent(), checker, tell), traffic, time.monotonic())
    return steps, checks


@pytest.mark.slow
def test_every_step_is_told_and_checked_once_although_there_is_no_time_between_steps() -> None:
    steps, checks = serve_alone(runtime_alone(), 12)
    assert [step.step for step in steps] == list(range(12))
    assert [check.step for check in checks] == list(range(12))
    assert all(check.error < TOLERANCE for check in checks)


def test_checks_that_are_left_for_the_end_are_told_one_by_one() -> None:
    words: list[tuple[int, int]] = []

    def tell(more: tuple[StepRecord, ...], checked: tuple[Checked, ...]) -> None:
        words.append((len(more), len(checked)))

    schedule = replace(SCHEDULE, interval_s=0.001)
    checker = Checker(DenseReference(SyntheticModel(SHAPE)), time.monotonic)
    rank = Rank(0, runtime_alone(), NoAgent(), checker, tell)
    traffic = Traffic(schedule, width=SHAPE.width, seed=1)
    serve(Serve(schedule, 0, 5, agent=None), rank, traffic, time.monotonic())
    assert words[-6:] == [(5, 0), *[(0, 1)] * 5]


@pytest.mark.parametrize("layer", range(NUM_LAYERS))
def test_the_weights_of_a_wrong_expert_in_a_slot_are_found_out(layer: int) -> None:
    runtime = runtime_alone()
    hottest = int(np.bincount(drawn_experts(layer), minlength=NUM_EXPERTS).argmax())
    wrong = runtime.model.expert(layer, (hottest + 1) % NUM_EXPERTS, torch.float32).named()
    for name, live in runtime.slots.expert_tensors(layer, hottest).items():
        live.copy_(wrong[name][0])

    _, checks = serve_alone(runtime, 8)

    errors_NT = np.array([[check.error for check in checks]])
    # At step 0 the rank is idle; at every other one some token meets the hottest expert.
    assert measures.num_wrong(errors_NT, tolerance=TOLERANCE) == 7
    assert errors_NT[0, 1:].min() > 1000 * TOLERANCE


def drawn_experts(layer: int) -> npt.NDArray[np.int64]:
    traffic = Traffic(SCHEDULE, width=SHAPE.width, seed=1)
    chosen: list[npt.NDArray[np.int64]] = []
    for step in range(1, 8):
        router = traffic.batch(step, 0).router
        assert isinstance(router, ByLogits)
        top = router.logits_LTE[layer].topk(SHAPE.selector.top_k, dim=1).indices
        chosen.append(top.numpy().ravel())
    return np.concatenate(chosen)


def test_an_idle_rank_has_nothing_to_check() -> None:
    checker = Checker(DenseReference(SyntheticModel(SHAPE)), time.monotonic)
    idle = Batch.dummy(SHAPE.width, phase=Phase.DECODE)
    checker.served(3, idle, idle.x_TD)
    assert checker.check_until(float("inf")) == [Checked(3, 0.0)]


def test_no_step_is_checked_when_there_is_no_time_and_none_is_forgotten() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # every look at the clock is a second later, so a check takes one
        return now[0]

    traffic = Traffic(SCHEDULE, width=SHAPE.width, seed=1)
    checker = Checker(DenseReference(SyntheticModel(SHAPE)), clock)
    runtime = runtime_alone()
    for step in range(1, 4):
        batch = traffic.batch(step, 0)
        checker.served(step, batch, runtime.forward(batch))

    assert [check.step for check in checker.check_until(now[0] + 1.5)] == [1]
    assert checker.check_until(now[0] + 1.5) == []
    assert [check.step for check in checker.check_rest()] == [2, 3]
