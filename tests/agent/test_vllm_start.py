"""What vLLM is started with: a map from a file, and settings that may contradict each other."""

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from eplb_service.domain.errors import InvalidMapFile
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from moe_runtime.vllm import (
    CannotOwn,
    Contradiction,
    FactoryTaken,
    Options,
    OwnedModel,
    SlotLayout,
    Unowned,
)
from moe_runtime.vllm.seams import Factory
from worker_agent.adapters.vllm.early import require_one_redundancy, require_ownable
from worker_agent.adapters.vllm.identity import VllmConfig
from worker_agent.adapters.vllm.start_map import (
    StartMap,
    layers_of,
    placement_at_start,
    read_start_map,
)

TWO_LAYERS = [[[0, 1, 2], [3, 0, 1]], [[3, 2, 1], [0, 3, 2]]]


def written(folder: Path, ranks: list[list[list[int]]], layers: list[int]) -> StartMap:
    placement = placement_from_ranks(ranks, num_experts=4)
    (folder / "map.json").write_text(format_map(placement, layers))
    return read_start_map(folder / "map.json")


def model_with(*layers: int, num_ranks: int = 2, num_experts: int = 4) -> OwnedModel:
    """As far as a file is held against it."""
    names = tuple(f"model.layers.{number}.mlp.experts" for number in layers)
    facts = SimpleNamespace(names=names, num_layers=len(names), num_experts=num_experts)
    stack = SimpleNamespace(facts=facts, layout=SlotLayout((3,) * num_ranks))
    return cast("OwnedModel", SimpleNamespace(stack=stack))


@pytest.mark.parametrize("numbered", [[0, 1], [3, 4]])
def test_a_file_fits_by_the_models_numbers_or_counted_from_zero(
    tmp_path: Path, numbered: list[int]
) -> None:
    start = written(tmp_path, TWO_LAYERS, numbered)
    assert start.num_slots == 6
    placement = placement_at_start(start, model_with(3, 4))
    assert placement.phy2log.tolist() == [[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2]]


def test_a_pipeline_stage_takes_its_own_layers_of_a_file(tmp_path: Path) -> None:
    """Case F32: the second stage has layers 2 and 3 of four."""
    start = written(tmp_path, [*TWO_LAYERS, *TWO_LAYERS[::-1]], [0, 1, 2, 3])
    placement = placement_at_start(start, model_with(2, 3))
    assert placement.phy2log.tolist() == [[3, 2, 1, 0, 3, 2], [0, 1, 2, 3, 0, 1]]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (model_with(0, 1, 2), r"layers \[0, 1\]; expected MoE layers 0 to 2"),
        (model_with(0, 1, num_ranks=3), r"have \[3, 3\] slots, those of the engine \[3, 3, 3\]"),
        (model_with(0, 1, num_experts=3), "unknown expert 3"),
        (model_with(0, 1, num_experts=5), "expert 4 is missing"),
    ],
)
def test_a_file_of_another_model_is_refused_by_its_name(
    tmp_path: Path, model: OwnedModel, text: str
) -> None:
    start = written(tmp_path, TWO_LAYERS, [0, 1])
    with pytest.raises(Contradiction, match=text) as refused:
        placement_at_start(start, model)
    assert "map.json" in str(refused.value)


def test_a_draft_model_takes_nothing_of_its_targets_map(tmp_path: Path) -> None:
    """Case F31: the file has the target's two layers; a draft's are left where they were loaded."""
    counted = written(tmp_path, TWO_LAYERS, [0, 1])
    for own, draft in (((3, 4), 61), ((0, 1), 2), ((0, 1), 0)):
        with pytest.raises(Contradiction, match="the file has layers"):
            placement_at_start(counted.without(own), model_with(draft))


def test_a_layer_that_drafts_is_found_where_a_file_has_it(tmp_path: Path) -> None:
    both = written(tmp_path, [*TWO_LAYERS, TWO_LAYERS[1]], [3, 4, 61])
    placement = placement_at_start(both.without((3, 4)), model_with(61))
    assert placement.phy2log.tolist() == [[3, 2, 1, 0, 3, 2]]


def test_a_file_that_is_no_map_is_refused_before_a_model_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidMapFile, match=r"nowhere\.json cannot be read"):
        read_start_map(tmp_path / "nowhere.json")
    (tmp_path / "map.json").write_text(json.dumps({"layer_list": []}))
    with pytest.raises(InvalidMapFile, match="moe_layer_count"):
        read_start_map(tmp_path / "map.json")


def test_names_that_tell_no_number_leave_layers_unnumbered() -> None:
    assert layers_of(["language_model.model.layers.3.mlp.experts"]) == (3,)
    assert layers_of(["layers.0.blocks.1.experts"]) == ()
    assert layers_of(["model.layers.4.mlp.experts", "model.layers.3.mlp.experts"]) == ()


@dataclass
class Model:
    model: str = "qwen3"
    is_moe: bool = True
    num_experts: int = 16

    def get_num_experts(self) -> int:
        return self.num_experts


class Mode(Enum):
    """CompilationMode and CUDAGraphMode, as far as they are looked at."""

    NONE = 0
    VLLM_COMPILE = 3
    FULL_DECODE_ONLY = (2, 0)


def config(
    *,
    is_moe: bool = True,
    theirs: int = 0,
    is_on: bool = False,
    ascend: object = None,
    compiled: Mode = Mode.NONE,
    captured: Mode = Mode.NONE,
    **parallel_too: object,
) -> VllmConfig:
    parallel = SimpleNamespace(
        enable_eplb=is_on,
        eplb_config=SimpleNamespace(num_redundant_experts=theirs),
        **parallel_too,
    )
    found = SimpleNamespace(
        model_config=Model(is_moe=is_moe),
        parallel_config=parallel,
        additional_config=ascend,
        compilation_config=SimpleNamespace(mode=compiled, cudagraph_mode=captured),
    )
    return cast("VllmConfig", found)


def test_all_who_ask_for_the_same_redundancy_get_it() -> None:
    require_one_redundancy(config(), told=None)
    require_one_redundancy(config(), told=4, map_slots=20)
    require_one_redundancy(config(theirs=4, is_on=True), told=4)
    require_one_redundancy(config(theirs=4, is_on=True), told=None)


def test_numbers_of_vllm_our_settings_and_a_map_that_differ_are_all_told() -> None:
    """Engine side of F44, before anything of the model is loaded."""
    ascend = {"eplb_config": {"num_redundant_experts": 2}}
    with pytest.raises(Contradiction) as refused:
        require_one_redundancy(config(theirs=8, is_on=True, ascend=ascend), told=4, map_slots=22)
    told = str(refused.value)
    for claim in (
        "EPLB_VLLM_REDUNDANT_EXPERTS: 4",
        "22 slots for 16 experts: 6",
        "vLLM's eplb_config.num_redundant_experts: 8",
        "vllm-ascend's eplb_config.num_redundant_experts: 2",
    ):
        assert claim in told


def never(**keywords: object) -> object:
    raise AssertionError(keywords)


@pytest.mark.parametrize(
    ("unfit", "text"),
    [
        (config(is_moe=False), "no MoE layers"),
        (config(ascend={"xlite_graph_config": {"enabled": True}}), "xlite computes its MoE layers"),
        (config(compiled=Mode.VLLM_COMPILE), "mode=VLLM_COMPILE.* set --enforce-eager"),
        (config(enable_elastic_ep=True), "ranks come and go while it serves .*enable_elastic_ep"),
        (config(enable_dbo=True), "parts of a batch at the same time .*enable_dbo"),
        (config(ubatch_size=2), "parts of a batch at the same time .*ubatch_size"),
        (config(captured=Mode.FULL_DECODE_ONLY), "cudagraph_mode=FULL_DECODE_ONLY"),
    ],
)
def test_what_cannot_be_owned_is_known_before_it_is_loaded(unfit: VllmConfig, text: str) -> None:
    """Case F63; and a runtime that takes MoE layers past vLLM's factory."""
    made = cast("Factory", never)
    with pytest.raises(CannotOwn, match=text):
        require_ownable(unfit, FactoryTaken(Options(), "FusedMoEFactory", made))
    served = FactoryTaken(Options(unowned=Unowned.SERVE), "FusedMoEFactory", made)
    require_ownable(unfit, served)
    assert served.declined is not None
    require_ownable(config(ascend={"xlite_graph_config": {}}), FactoryTaken(Options(), "f", made))
