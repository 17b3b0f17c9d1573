"""A worker's steps go through owned layers, or the engine ends; and who binds the factory early."""

import sys
from types import ModuleType
from typing import cast

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
from tests.runtime.test_vllm_owned import owned
from worker_agent.adapters.vllm.attachment import Attachment, AttachSeat

REAL = StepScope(StepKind.REAL, Phase.DECODE, 1)


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
