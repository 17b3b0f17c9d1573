"""Slots keep their addresses, take staged experts whole, and say what they hold."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import BadInstall
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.placement.slots import EMPTY, ExpertSlots, Install, digest
from moe_runtime.runtime import SyntheticModel
from tests.runtime.stacks import kimi_like

MODEL = SyntheticModel(kimi_like())


def load(layer: int, held_S: list[int]) -> DenseWeights:
    experts = [MODEL.expert(layer, max(e, 0), torch.float32) for e in held_S]
    return DenseWeights(
        torch.cat([e.w13_SFZ for e in experts]), torch.cat([e.w2_SZI for e in experts])
    )


def slots() -> ExpertSlots[DenseWeights]:
    held = [[0, 1, 2, EMPTY], [3, 2, 1, 0]]
    layers = [load(layer, held_S) for layer, held_S in enumerate(held)]
    return ExpertSlots(layers, held_LS=held, staging_rows=3, num_experts=100)


def identity(layer: int, expert: int) -> bytes:
    named = MODEL.expert(layer, expert, torch.float32).named()
    return digest({name: stack[0] for name, stack in named.items()})


def stage(subject: ExpertSlots[DenseWeights], row: int, layer: int, expert: int) -> None:
    fresh = MODEL.expert(layer, expert, torch.float32).named()
    for name, staged in subject.staging_tensors(row).items():
        staged.copy_(fresh[name][0])


def addresses(subject: ExpertSlots[DenseWeights]) -> list[int]:
    return [
        tensor.data_ptr()
        for layer in range(2)
        for slot in range(4)
        for tensor in subject.expert_tensors(layer, slot).values()
    ]


def test_an_install_changes_the_content_and_no_address() -> None:
    subject = slots()
    before = addresses(subject)
    stage(subject, 0, layer=0, expert=6)
    stage(subject, 2, layer=0, expert=7)

    subject.install(0, [Install(3, 0), Install(1, 2)], [0, 7, 2, 6])

    assert addresses(subject) == before
    held = [digest(subject.expert_tensors(0, slot)) for slot in range(4)]
    assert held == [identity(0, expert) for expert in (0, 7, 2, 6)]
    assert subject.held()[0].tolist() == [0, 7, 2, 6]


def test_an_install_touches_no_other_layer() -> None:
    subject = slots()
    stage(subject, 0, layer=0, expert=6)
    subject.install(0, [Install(0, 0)], [6, 1, 2, EMPTY])
    assert [digest(subject.expert_tensors(1, s)) for s in range(4)] == [
        identity(1, expert) for expert in (3, 2, 1, 0)
    ]
    assert subject.held()[1].tolist() == [3, 2, 1, 0]


def test_a_slot_can_be_vacated_without_weights() -> None:
    subject = slots()
    subject.install(1, [], [3, EMPTY, 1, EMPTY])
    assert subject.held()[1].tolist() == [3, EMPTY, 1, EMPTY]


@dataclass(frozen=True, slots=True)
class Wrong:
    """An install that must be refused whole."""

    installs: tuple[Install, ...]
    held: tuple[int, ...]
    told: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong((Install(4, 0),), (0, 1, 2, 5), r"no local slot \[4\]: there are 4"),
        Wrong((Install(-1, 0),), (0, 1, 2, 5), "no local slot"),
        Wrong((Install(3, 3),), (0, 1, 2, 5), r"no staging row \[3\]: there are 3"),
        Wrong((Install(3, 0), Install(3, 1)), (0, 1, 2, 5), "twice"),
        Wrong((Install(3, 0),), (0, 1, 5, 5), r"slots \[2\] get a new expert but no weights"),
        Wrong((Install(3, 0),), (0, 1, 5), "shape"),
    ],
)
def test_a_wrong_install_is_refused_and_changes_nothing(wrong: Wrong) -> None:
    subject = slots()
    before = [digest(subject.expert_tensors(0, slot)) for slot in range(4)]
    with pytest.raises(BadInstall, match=wrong.told):
        subject.install(0, wrong.installs, wrong.held)
    assert [digest(subject.expert_tensors(0, slot)) for slot in range(4)] == before
    assert subject.held()[0].tolist() == [0, 1, 2, EMPTY]


def test_held_is_a_copy() -> None:
    subject = slots()
    subject.held()[:] = 5
    assert subject.held()[0].tolist() == [0, 1, 2, EMPTY]


TWO = {"w": torch.tensor([1.0, 2.0]), "scale": torch.tensor([3.0])}


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.tensor([1.0, 2.5]), "scale": torch.tensor([3.0])},
        {"v": torch.tensor([1.0, 2.0]), "scale": torch.tensor([3.0])},
        {"w": torch.tensor([[1.0, 2.0]]), "scale": torch.tensor([3.0])},
        {"w": torch.tensor([1.0, 2.0]).view(torch.int32), "scale": torch.tensor([3.0])},
        {"w": torch.tensor([1.0, 2.0])},
    ],
)
def test_a_digest_sees_values_names_shapes_dtypes_and_missing_tensors(
    other: dict[str, Tensor],
) -> None:
    assert digest(TWO) != digest(other)


def test_a_digest_sees_neither_the_order_of_names_nor_strides() -> None:
    strided = torch.tensor([[1.0, 9.0], [2.0, 9.0]])[:, 0]
    same = {"scale": torch.tensor([3.0]), "w": strided}
    assert digest(same) == digest(TWO)
    assert len(digest(TWO)) == 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float64, torch.bool])
def test_a_digest_takes_every_dtype(dtype: torch.dtype) -> None:
    assert len(digest({"w": torch.ones(3, dtype=dtype), "scalar": torch.tensor(1.0)})) == 16


def test_weights_of_one_expert_are_the_same_wherever_they_are_made() -> None:
    assert identity(0, 1) == identity(0, 1)
    everyone = {identity(layer, expert) for layer in range(2) for expert in range(8)}
    assert len(everyone) == 16
    assert np.isfinite(MODEL.expert(1, 2, torch.float64).w13_SFZ.numpy()).all()
