"""Which checkpoints of quantised experts the runtime's formats honour, in vLLM's own layout."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from moe_runtime.contracts.torch_calls import from_array, to_array
from moe_runtime.contracts.weights import DenseWeights
from moe_runtime.formats.packing import Packing, WeightFormat, dense_of, pack
from moe_runtime.vllm import CannotOwn, allocating
from moe_runtime.vllm import formats as the_formats
from moe_runtime.vllm.allocating import Sizes
from moe_runtime.vllm.formats import KNOWN, StoredAs, scheme_of, weights_of
from moe_runtime.vllm.int4 import Int4Groups
from moe_runtime.vllm.seams import RoutedExperts

SIZES = Sizes(num_slots=3, width=64, expert_width=32, dtype=torch.float32)
PREFIX = "model.layers.1.mlp.experts"


@dataclass
class Args:
    """QuantizationArgs, as far as they are looked at."""

    num_bits: int
    type: str
    strategy: str
    group_size: int | None = None
    symmetric: bool = True
    dynamic: bool = False
    scale_dtype: torch.dtype | None = None


INT8, FP8 = Args(8, "int", "channel"), Args(8, "float", "channel")
MX4, MX8 = Args(4, "float", "group", 32), Args(8, "float", "group", 32, scale_dtype=torch.uint8)
ROWS_INT8 = Args(8, "int", "token", dynamic=True)
ROWS_FP8 = Args(8, "float", "token", dynamic=True)
ROWS_MX8 = Args(8, "float", "group", 32, dynamic=True)
ROWS_MX4 = Args(4, "float", "group", 32, dynamic=True)
HONOURED = [
    (INT8, ROWS_INT8, WeightFormat.W8A8),
    (FP8, ROWS_FP8, WeightFormat.W8A8_FP8),
    (MX8, ROWS_MX8, WeightFormat.W8A8_MXFP8),
    (MX4, None, WeightFormat.W4A16_MXFP4),
    (MX4, ROWS_MX8, WeightFormat.W4A8_MXFP),
    (MX4, ROWS_MX4, WeightFormat.W4A4_MXFP4),
]
INT4 = ("int4 by group of 32", "as they are")
NOT_HONOURED = [
    (Args(4, "int", "tensor"), None, "int4 by tensor weights with rows as they are"),
    (Args(4, "int", "group", 32, symmetric=False), None, "asymmetric int4 by group of 32"),
    (INT8, None, "int8 by channel weights with rows as they are"),
    (INT8, Args(8, "int", "tensor"), "with rows static int8 by tensor"),
    (Args(8, "float", "block"), ROWS_FP8, "float8 by block weights"),
    (MX8, ROWS_FP8, "with rows float8 by token"),
    (Args(8, "float", "group", 32), ROWS_MX8, "with scales of None"),
    (Args(8, "int", "channel", symmetric=False), ROWS_INT8, "asymmetric int8"),
]


@dataclass
class Config:
    """CompressedTensorsConfig with one scheme for some linears, as far as it is asked."""

    weights: Args
    rows: Args | None
    ignored: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list[str])

    def get_name(self) -> str:
        return "compressed-tensors"

    def _add_fused_moe_to_target_scheme_map(self) -> None:
        self.asked.append("targets")

    def get_scheme_dict(self, layer: object, layer_name: str) -> dict[str, object] | None:
        del layer
        self.asked.append(layer_name)
        if layer_name.rpartition(".")[2] in self.ignored:
            return None
        return {"weights": self.weights, "input_activations": self.rows}


@pytest.fixture(autouse=True)
def fitting_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is not there: its names are probed where it is."""
    monkeypatch.setattr(the_formats, "NEEDS", ())


def layer() -> RoutedExperts:
    names = {"ckpt_gate_proj_name": "gate_proj", "ckpt_up_proj_name": "up_proj"}
    return cast("RoutedExperts", SimpleNamespace(**names, ckpt_down_proj_name="down_proj"))


@pytest.mark.parametrize(("weights", "rows", "form"), HONOURED)
def test_a_checkpoint_of_a_known_format_is_read_as_it_lies(
    weights: Args, rows: Args | None, form: WeightFormat
) -> None:
    config = Config(weights, rows)
    scheme = scheme_of(config, layer(), PREFIX)
    assert isinstance(scheme, StoredAs)
    assert scheme.format is form
    assert config.asked == [
        "targets",
        *(f"{PREFIX}.0.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
    ]
    require_view(scheme)


def require_view(scheme: StoredAs) -> None:
    """What a loader writes under a checkpoint's names is what experts compute with."""
    dense = DenseWeights(torch.randn(3, 64, 64), torch.randn(3, 64, 32))
    packed = pack(dense, Packing(scheme.format), torch.float32)
    names = {
        "w13": f"w13_{scheme.suffix}",
        "w2": f"w2_{scheme.suffix}",
        "w13_scale": "w13_weight_scale",
        "w2_scale": "w2_weight_scale",
    }
    shapes = scheme.shapes(SIZES)
    parameters: dict[str, Tensor] = {}
    for name, stack in packed.named().items():
        lies = stack if stack.ndim == 3 else stack[:, :, None]
        assert lies.shape == shapes[names[name]]
        assert lies.dtype is (scheme.scales if name.endswith("scale") else scheme.values)
        parameters[names[name]] = lies.contiguous()
    loaded = SimpleNamespace(**parameters, eplb_scheme=scheme)
    read = weights_of(cast("RoutedExperts", loaded))
    assert torch.equal(dense_of(read).w13_SFZ, dense_of(packed).w13_SFZ)
    assert {stack.data_ptr() for stack in read.named().values()} == {
        stack.data_ptr() for stack in parameters.values()
    }


@pytest.mark.parametrize(("weights", "rows", "text"), NOT_HONOURED)
def test_another_format_is_refused_by_its_name(weights: Args, rows: Args | None, text: str) -> None:
    with pytest.raises(CannotOwn) as refused:
        scheme_of(Config(weights, rows), layer(), PREFIX)
    assert text in str(refused.value)
    assert PREFIX in str(refused.value)


def test_a_layer_that_a_checkpoint_leaves_as_it_is_is_not_quantised() -> None:
    ignoring = Config(MX4, None, ignored=("gate_proj", "up_proj", "down_proj"))
    assert scheme_of(ignoring, layer(), PREFIX) is None
    with pytest.raises(CannotOwn, match="each in another way"):
        scheme_of(Config(MX4, None, ignored=("down_proj",)), layer(), PREFIX)


def test_another_method_is_refused_by_its_name() -> None:
    method = SimpleNamespace(get_name=lambda: "fp8")
    with pytest.raises(CannotOwn, match="quantised by fp8, expected compressed-tensors"):
        scheme_of(method, layer(), PREFIX)


@pytest.mark.parametrize("words", [("float4 by group of 32", "as they are"), INT4])
def test_widths_that_blocks_do_not_divide_are_refused(words: tuple[str, str]) -> None:
    odd = Sizes(num_slots=3, width=48, expert_width=32, dtype=torch.float32)
    named = cast("RoutedExperts", SimpleNamespace(layer_name=PREFIX))
    with pytest.raises(CannotOwn, match="widths 48 and 32 are no multiples of 32"):
        KNOWN[words].allocate(named, odd, {})


class Layer(torch.nn.Module):
    """One rank's layer: it has experts 4 to 6."""

    layer_name = PREFIX

    def _map_global_expert_id_to_local_expert_id(self, expert_id: int) -> int:
        return expert_id - 4 if 4 <= expert_id < 7 else -1


@pytest.mark.parametrize("group", [32, 0])
def test_int4_is_turned_round_while_it_is_loaded(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint has eight inputs in a word, each with 8 added, and scales by output."""
    monkeypatch.setattr(allocating.seams, "module", utils)
    loaded = Layer()
    layer = cast("RoutedExperts", loaded)
    scheme = Int4Groups(group)
    scheme.allocate(layer, SIZES, {"weight_loader": None})
    want: dict[tuple[int, str], Tensor] = {}
    for expert in range(8):
        for shard, (outputs, inputs) in SHARDS.items():
            numbers = torch.randint(-8, 8, (outputs, inputs))
            each = group or inputs
            scales = torch.rand(outputs, inputs // each) + 0.5
            want[expert, shard] = numbers * scales.repeat_interleave(each, dim=1)
            stem = "w2" if shard == "w2" else "w13"
            shape = torch.tensor([outputs, inputs])
            for part, tensor in (("packed", packed(numbers)), ("scale", scales), ("shape", shape)):
                name = f"{stem}_weight_{part}"
                param = loaded.get_parameter(name)
                load = cast("Callable[..., bool]", vars(param)["weight_loader"])
                found = load(
                    param=param,
                    loaded_weight=tensor,
                    weight_name=name,
                    shard_id=shard,
                    expert_id=expert,
                    return_success=True,
                )
                assert found is (4 <= expert < 7 or part == "shape")
    dense = dense_of(scheme.read(loaded))
    for slot in range(3):
        gate, up = dense.w13_SFZ[slot].chunk(2)
        for shard, got in (("w1", gate), ("w3", up), ("w2", dense.w2_SZI[slot])):
            assert torch.equal(got.float(), want[slot + 4, shard])


SHARDS = {"w1": (32, 64), "w3": (32, 64), "w2": (64, 32)}


def packed(numbers_BA: Tensor) -> Tensor:
    """[B, A / 8] as compressed-tensors packs: unsigned, the first in the lowest bits."""
    offset = to_array(numbers_BA + 8).astype(np.uint32).reshape(len(numbers_BA), -1, 8)
    words = np.bitwise_or.reduce(offset << np.arange(0, 32, 4, dtype=np.uint32), axis=2)
    return from_array(words.view(np.int32))


def utils(where: str) -> object:
    """Of vLLM."""
    assert where == "vllm.model_executor.utils"
    return SimpleNamespace(set_weight_attrs=mark)


def mark(parameter: Tensor, attributes: dict[str, object]) -> None:
    for name, value in attributes.items():
        setattr(parameter, name, value)
