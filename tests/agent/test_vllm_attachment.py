"""What a worker does around its steps, a reload and its sleep, with an agent that only notes it."""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import numpy as np
import pytest
import torch

from moe_runtime.exchange.peers import Alone
from moe_runtime.vllm import (
    CannotOwn,
    FactoryTaken,
    Options,
    OwnedModel,
    Phase,
    StepKind,
    StepScope,
    require_none_late,
)
from moe_runtime.vllm.seams import Factory
from tests.runtime.test_vllm_owned import owned, weights
from worker_agent.adapters.vllm import attachment
from worker_agent.adapters.vllm.attachment import Attachment, AttachSeat
from worker_agent.adapters.vllm.identity import Identity
from worker_agent.adapters.vllm.worker import OwnedWorker, Worker

REAL = StepScope(StepKind.REAL, Phase.DECODE, 1)


@dataclass
class Noted:
    """Stands in for the agent's hook: nobody is there to move experts."""

    words: list[str]
    is_migrating: bool = False

    def before_step(self) -> int:
        self.words.append("agrees")
        return 0

    def after_step(self, kind: object) -> None:
        del kind

    def state(self) -> "Noted":
        return self

    def close(self) -> None:
        self.words.append("ends")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> tuple[OwnedWorker, OwnedModel, list[str]]:
    """A worker of one rank, its model and what its agents did."""
    words: list[str] = []

    def attach(*told: object) -> Noted:
        assert len(told) == 3
        words.append("attaches")
        return Noted(words)

    monkeypatch.setattr(attachment, "own_group", type(None))
    model = owned(Alone(), num_slots=4)
    bound = Attachment(
        cast("AttachSeat", attach), owned=model, identity=Identity("tiny", "serve", 0, "float32")
    )
    bound.attach()
    taken = FactoryTaken(Options(), "FusedMoEFactory", cast("Factory", never))
    return OwnedWorker(cast("Worker", object()), taken, bound), model, words


def test_a_reload_ends_the_order_under_way_says_so_and_keeps_the_placement(
    worker: tuple[OwnedWorker, OwnedModel, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """Case F40: no transfer is left that could write an old weight later."""
    own, model, words = worker
    model.start_in(np.array([[3, 1, 0, 2]]))
    cast("Noted", own.bound.hook).is_migrating = True

    def load() -> str:
        words.append("loads")
        for stack in model.stack.slots.weights(0).named().values():
            for slot in range(4):
                stack[slot] = 10.0 * slot + 3
        return "loaded"

    assert own.reload_weights(load)() == "loaded"
    assert words == ["attaches", "ends", "loads", "attaches"]
    assert "the order under way is dropped, since weights are reloaded" in caplog.text
    assert weights(model) == [33, 13, 3, 23]
    assert model.stack.held()[0].tolist() == [3, 1, 0, 2]


def test_a_sleeping_worker_has_no_agent(
    worker: tuple[OwnedWorker, OwnedModel, list[str]],
) -> None:
    own, _, words = worker
    own.sleep(lambda: words.append("sleeps"))()
    own.wake_up(lambda: words.append("wakes"))()
    own.wake_up(lambda: words.append("wakes"))()
    assert words == ["attaches", "ends", "sleeps", "wakes", "attaches", "wakes"]


def test_warming_up_is_no_step(worker: tuple[OwnedWorker, OwnedModel, list[str]]) -> None:
    """The agent neither agrees nor moves, and nothing is counted as load."""
    own, model, words = worker

    def run() -> None:
        model.stack.forward(0, torch.ones(1, 1), torch.eye(1, 4), None)

    run()  # as vLLM profiles memory
    own.compile_or_warm_up_model(run)()
    assert words == ["attaches"]
    counters = model.stack.counters()
    assert counters.steps_G[[StepKind.PROFILE, StepKind.WARMUP]].tolist() == [1, 1]
    assert not counters.received_HLS.sum()
    own.execute_dummy_batch(run)()
    assert words == ["attaches", "agrees"]
    assert not model.stack.counters().received_HLS.sum()


def attached() -> tuple[Attachment, OwnedModel]:
    """Without an agent: nobody is asked to attach one."""
    model = owned(Alone(), num_slots=4)
    return Attachment(cast("AttachSeat", never), owned=model), model


def never(*values: object) -> object:
    raise AssertionError(values)


def test_a_step_runs_in_its_scope_and_what_is_outside_of_one_does_not_count() -> None:
    bound, model = attached()

    def run() -> str:
        model.stack.forward(0, torch.ones(1, 1), torch.eye(1, 4), None)
        return "ran"

    run()
    assert not model.stack.counters().tokens_H.sum()
    assert bound.step(REAL, run) == "ran"
    assert model.stack.counters().tokens_H.sum() == 1
    run()
    assert model.stack.counters().tokens_H.sum() == 1


def test_a_step_that_runs_past_the_owned_layers_ends_the_engine() -> None:
    """A runtime such as vllm-ascend's xlite computes a model's weights by itself."""
    bound, _ = attached()
    with pytest.raises(CannotOwn, match="past the owned MoE layers, in another runtime"):
        bound.step(REAL, lambda: "computed elsewhere")


def test_a_module_that_bound_the_factory_early_is_found_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = FactoryTaken(Options(), "FusedMoEFactory", cast("Factory", never))
    require_none_late(taken)
    late = ModuleType("models.early")
    late.__dict__["FusedMoEFactory"] = never
    monkeypatch.setitem(sys.modules, "models.early", late)
    with pytest.raises(CannotOwn, match=r"models\.early bound FusedMoEFactory before the plugin"):
        require_none_late(taken)
