"""What an owner of tensors, models or threads does beside the runtime changes no result silently.

Axes    T tokens   D width   E experts   K experts per token
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.errors import BadChoice, NoGradients, ShapeMismatch, StepsOverlap
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.layer.parts import LayerWeights
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ByLogits,
    Captured,
    Chosen,
    CustomRouting,
    DenseReference,
    ExchangeMode,
    GroupPeers,
    MoeRuntime,
    Packing,
    Peers,
    Phase,
    Step,
    StepKind,
    SyntheticModel,
    Traffic,
    WeightFormat,
)
from moe_runtime.runtime.model import ExpertBias, StackShape
from tests.runtime.ranks import run_ranks
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import kimi_like, random_layout, tokens

SHAPE = kimi_like()
DECODE = Step(StepKind.REAL, Phase.DECODE)
LAYOUT = random_layout(SHAPE, (SHAPE.num_experts + 1,), seed=1, num_empty=1)
WIDE = torch.float64


@dataclass
class Owned:
    """Meets `Model`: hands out what its owner goes on to use."""

    plain: SyntheticModel
    change: Callable[[Tensor], Tensor]
    layers: list[LayerWeights]

    @property
    def shape(self) -> StackShape:
        return self.plain.shape

    def layer(self, layer: int, dtype: torch.dtype) -> LayerWeights:
        made = self.plain.layer(layer, dtype)
        self.layers.append(replace(made, gate_XD=torch.nn.Parameter(made.gate_XD)))
        return self.layers[-1]

    def bias(self, layer: int, expert: int, dtype: torch.dtype) -> ExpertBias:
        return self.plain.bias(layer, expert, dtype)

    def expert(self, layer: int, expert: int, dtype: torch.dtype) -> DenseWeights:
        made = self.plain.expert(layer, expert, dtype)
        return DenseWeights(self.change(made.w13_SFZ), self.change(made.w2_SZI))


def owned(change: Callable[[Tensor], Tensor] = torch.nn.Parameter) -> Owned:
    return Owned(SyntheticModel(SHAPE), change, [])


def serving(
    model: Owned | SyntheticModel,
    *,
    dtype: torch.dtype = WIDE,
    packing: Packing | None = None,
    traffic: Traffic | ExchangeMode = ExchangeMode.ALL_TO_ALL,
    peers: Peers | None = None,
) -> MoeRuntime:
    return MoeRuntime(
        model,
        LAYOUT.start(0),
        peers=peers or Alone(),
        mode=traffic,
        dtype=dtype,
        packing=packing or Packing(),
    )


def batch(num_tokens: int = 6, *, dtype: torch.dtype = WIDE) -> Batch:
    return Batch.of(tokens(SHAPE, num_tokens, seed=1).to(dtype), ByGate(), DECODE)


def right(given: Batch) -> Tensor:
    return DenseReference(SyntheticModel(SHAPE)).forward(given.x_TD.detach().double(), ByGate())


def test_parameters_are_served_and_what_their_owner_does_to_them_later_is_not() -> None:
    model = owned()
    runtime = serving(model)
    for layer in model.layers:
        layer.gate_XD.data.zero_()
    out = runtime.forward(batch())
    assert not out.requires_grad
    torch.testing.assert_close(out, right(batch()))


def test_tokens_that_want_gradients_are_refused_since_they_would_get_none() -> None:
    runtime, given = serving(SyntheticModel(SHAPE)), batch()
    tracked = replace(given, x_TD=given.x_TD.clone().requires_grad_())
    with pytest.raises(NoGradients, match="x_TD wants a gradient"):
        runtime.forward(tracked)
    logits = torch.zeros((SHAPE.num_layers, 6, SHAPE.num_experts), requires_grad=True)
    with pytest.raises(NoGradients, match="logits_LTE wants a gradient"):
        runtime.forward(replace(given, router=ByLogits(logits)))
    with torch.no_grad():
        torch.testing.assert_close(runtime.forward(tracked), right(given))


def wild(x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
    best = logits_TE.topk(top_k, dim=1)
    x_TD.zero_()
    return Chosen(best.indices, best.values)


def wild_too(x_TD: Tensor, logits_TE: Tensor, *, top_k: int) -> Chosen:
    del x_TD
    best = logits_TE.sigmoid_().topk(top_k, dim=1)
    return Chosen(best.indices, best.values)


@pytest.mark.parametrize("function", [wild, wild_too])
def test_a_routing_function_that_changes_what_it_is_given_is_refused(
    function: Callable[..., Chosen],
) -> None:
    routing = CustomRouting(num_experts=8, top_k=3, function=function, factor=2.0)
    shape = stack_of(replace(KINDS["custom"], routing=routing))
    layout = random_layout(shape, (8,), seed=1)
    runtime = MoeRuntime(
        SyntheticModel(shape), layout.start(0), peers=Alone(), mode=ExchangeMode.ALL_TO_ALL
    )
    with pytest.raises(BadChoice, match="changed what it was given in place"):
        runtime.forward(Batch.of(tokens(shape, 3, seed=1), ByGate(), DECODE))


def _nan(w: Tensor) -> Tensor:
    return w * torch.nan


def _whole(w: Tensor) -> Tensor:
    return w.mul(100).char()


def _complex(w: Tensor) -> Tensor:
    return torch.complex(w, w)


def _beyond_float16(w: Tensor) -> Tensor:
    return w * 1e8


def _beyond_float32(w: Tensor) -> Tensor:
    return w.double() * 1e300


@pytest.mark.parametrize(
    ("change", "dtype", "stored", "says"),
    [
        (_nan, WIDE, WeightFormat.UNQUANTISED, "not finite in torch.float64"),
        (_nan, WIDE, WeightFormat.W8A8, "not finite in torch.float32"),
        (_nan, WIDE, WeightFormat.W4A4_MXFP4, "not finite in torch.float32"),
        (_whole, WIDE, WeightFormat.UNQUANTISED, "torch.int8"),
        (_whole, WIDE, WeightFormat.W8A8, "torch.int8"),
        (_complex, WIDE, WeightFormat.UNQUANTISED, "torch.complex128"),
        (_beyond_float16, torch.float16, WeightFormat.UNQUANTISED, "not finite in torch.float16"),
        (_beyond_float32, WIDE, WeightFormat.W8A8, "not finite in torch.float32"),
        (_beyond_float32, WIDE, WeightFormat.W8A8_MXFP8, "not finite in torch.float32"),
    ],
)
def test_weights_that_are_no_numbers_of_the_model_are_refused_at_load(
    change: Callable[[Tensor], Tensor], dtype: torch.dtype, stored: WeightFormat, says: str
) -> None:
    with pytest.raises(ShapeMismatch, match=says):
        serving(owned(change), dtype=dtype, packing=Packing(stored))


class Calls:
    """Meets `CaptureSink`: calls the runtime from within its own step."""

    def __init__(self) -> None:
        self.call: Callable[[], object] = lambda: None

    def take(self, captured: Captured) -> None:
        del captured
        self.call()


@pytest.mark.parametrize("what", ["forward", "set_table", "install"])
def test_what_would_come_into_a_step_that_is_going_on_is_refused(what: str) -> None:
    sink = Calls()
    runtime = serving(
        SyntheticModel(SHAPE), traffic=Traffic(mode=ExchangeMode.ALL_GATHER, capture=sink)
    )
    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: runtime.forward(batch()),
        "set_table": lambda: runtime.set_table(0, runtime.tables()[0]),
        "install": lambda: runtime.install(0, [], runtime.held()[0]),
    }
    sink.call = calls[what]
    with pytest.raises(StepsOverlap, match=what):
        runtime.forward(batch())
    sink.call = lambda: None
    torch.testing.assert_close(runtime.forward(batch()), right(batch()))


def test_two_threads_never_step_one_runtime_at_a_time() -> None:
    """One of them is held inside its step while the other tries."""
    sink, entered, leave = Calls(), threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert leave.wait(20)

    sink.call = hold
    runtime = serving(
        SyntheticModel(SHAPE), traffic=Traffic(mode=ExchangeMode.ALL_GATHER, capture=sink)
    )
    outs: list[Tensor] = []
    first = threading.Thread(target=lambda: outs.append(runtime.forward(batch())))
    first.start()
    assert entered.wait(20)
    with pytest.raises(StepsOverlap, match="was not started"):
        runtime.forward(batch())
    leave.set()
    first.join(20)
    torch.testing.assert_close(outs[0], right(batch()))


def over_one_group(rank: int, _: object) -> str:
    """Two runtimes over the group: the second tries to step within the first's step."""
    sink = Calls()
    layout = random_layout(SHAPE, (5, 5), seed=1)

    def made(traffic: Traffic) -> MoeRuntime:
        return MoeRuntime(
            SyntheticModel(SHAPE), layout.start(rank), peers=GroupPeers(), mode=traffic
        )

    first = made(Traffic(mode=ExchangeMode.ALL_TO_ALL, capture=sink))
    second = made(Traffic(mode=ExchangeMode.ALL_TO_ALL))
    refused: list[str] = []

    def inside() -> None:
        try:
            second.forward(batch(dtype=torch.float32))
        except StepsOverlap as overlap:
            refused.append(str(overlap))

    sink.call = inside
    first.forward(batch(dtype=torch.float32))
    second.forward(batch(dtype=torch.float32))  # one after the other they may
    return refused[0]


@pytest.mark.processes
@pytest.mark.slow
def test_two_runtimes_over_one_group_never_step_at_a_time() -> None:
    """Their collectives would be paired with each other's."""
    told: Sequence[str] = run_ranks(over_one_group, None, num_ranks=2)
    assert all("was not started" in text for text in told)
