"""A model is ours whole or not at all."""

from typing import cast

import pytest

from moe_runtime.vllm import CannotOwn, Options, Unowned
from moe_runtime.vllm.factory import FactoryTaken
from moe_runtime.vllm.seams import Runner

QUANTISED = {"prefix": "layers.1.experts", "quant_config": object()}
PLAIN = {"prefix": "layers.2.experts"}


class Original:
    """Stands in for vLLM's factory and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    def __call__(self, **keywords: object) -> Runner:
        self.asked.append(keywords)
        return cast("Runner", object())


def taken(unowned: Unowned) -> tuple[FactoryTaken, Original]:
    original = Original()
    return FactoryTaken(Options(unowned=unowned), "FusedMoEFactory", original), original


def test_what_cannot_be_owned_is_refused_by_name() -> None:
    factory, original = taken(Unowned.REFUSE)
    with pytest.raises(CannotOwn, match=r"layers\.1\.experts .* quantised by object"):
        factory.make(**QUANTISED)
    assert not original.asked


def test_what_cannot_be_owned_is_left_to_vllm_whole() -> None:
    factory, original = taken(Unowned.SERVE)
    factory.make(**QUANTISED)
    factory.make(**PLAIN)
    assert original.asked == [QUANTISED, PLAIN], "a later layer was taken, or made otherwise"
    assert factory.declined is not None


def test_a_model_of_which_a_layer_is_owned_is_not_left_half() -> None:
    factory, original = taken(Unowned.SERVE)
    factory.num_made = 1
    with pytest.raises(CannotOwn):
        factory.make(**QUANTISED)
    assert not original.asked
