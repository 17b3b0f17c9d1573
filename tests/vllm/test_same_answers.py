"""Real vLLM with our layers answers as vLLM alone, before, during and after placements."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.demo_vllm.models import NUM_EXPERTS, TOP_K
from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import START_S, Controller
from benchmarks.demo_vllm.prompts import NUM_TOKENS, PROMPTS
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from tests.vllm.conftest import AGREE_EVERY, Golden
from tests.vllm.group import VllmGroup, largest_difference
from tests.vllm.on_ray import own_folder
from tests.vllm.words import Answer, Executor, Layout, Stats

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

TOLERANCE = 1e-4
NUM_PLACEMENTS = 3


@dataclass(frozen=True)
class Case:
    """One group of ranks."""

    model: str
    layout: Layout
    num_ranks: int
    redundant: int
    starts_in: tuple[tuple[int, ...], ...] = ()
    """[L][P] a placement from a file; redundancy is then what it leaves."""
    executor: Executor = "external_launcher"

    def __str__(self) -> str:
        by = "" if self.executor == "external_launcher" else f"-{self.executor}"
        return f"{self.model}-{self.layout}{self.num_ranks}-r{self.redundant}{by}"

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks hold all tokens."""
        return self.layout == "tp" and self.model != "k3"

    @property
    def num_engines(self) -> int:
        """Engines, each of which is given all prompts."""
        return {"dp": self.num_ranks, "dptp": 2}.get(self.layout, 1)


OF_DEEPSEEK = ((7, 1, 5, 3, 0, 2, 6, 4, 1, 7), (0, 2, 4, 6, 1, 3, 5, 7, 0, 2))
"""Of its layers 1 and 2, on two ranks: layer 0 is dense."""

# Each model, way of sharing tokens and redundancy meets each other one once; four processes once,
# as engines that are tensor parallel too; and workers that Ray starts once.
CASES = (
    Case("qwen3", "dp", 2, 2),
    Case("qwen3", "tp", 2, 0, executor="ray"),
    Case("qwen3", "dptp", 4, 4),
    Case("deepseek", "dp", 2, 0),
    Case("deepseek", "tp", 2, 2, OF_DEEPSEEK),
    Case("k3", "dp", 2, 2),
    Case("k3", "tp", 2, 0),
)
FURTHER_CASES = (
    Case("qwen3", "dp", 4, 4),
    Case("qwen3", "tp", 2, 0),
    Case("qwen3", "tp", 2, 2, executor="mp"),
    Case("qwen3", "dp", 2, 0),
    Case("qwen3", "tp", 2, 2),
    Case("deepseek", "dp", 2, 2),
    Case("deepseek", "tp", 2, 0),
    Case("k3", "dp", 2, 0),
    Case("k3", "tp", 2, 2),
)
ALL = (*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in FURTHER_CASES))


@dataclass(frozen=True)
class Served:
    """A group that serves a case, and its operator."""

    case: Case
    model: Path
    group: VllmGroup
    operator: DeploymentOperator
    want: list[Answer]

    def require_same(self) -> None:
        for rank, got in enumerate(self.group.generate()):
            wrong = [i for i, one in enumerate(got) if one.tokens != self.want[i].tokens]
            assert not wrong, f"rank {rank}: prompts {wrong} are answered otherwise"
            assert largest_difference(got, self.want) < TOLERANCE
            routed = [i for i, one in enumerate(got) if one.experts != self.want[i].experts]
            assert not routed, f"rank {rank}: prompts {routed} were given other experts"

    def place_anew(self) -> None:
        """One placement that the controller orders, with answers checked while it comes.

        However slow the machine is, one comes as long as steps run: pytest's limit ends the wait.
        """
        before = self.operator.status().epoch
        is_taken = self.operator.move()
        while True:
            self.require_same()
            if self.operator.is_calm() and self.operator.status().epoch > before:
                return
            is_taken = is_taken or self.operator.move()


@pytest.fixture(params=ALL, ids=str)
def served(
    request: pytest.FixtureRequest,
    golden: Golden,
    controller: Controller,
    tmp_path: Path,
) -> Iterator[Served]:
    case: Case = request.param
    model, want = golden(case.model)
    extra = {
        "EPLB_VLLM_ENABLED": "1",
        **redundancy(case, tmp_path),
        "EPLB_AGENT_ENDPOINT": f"127.0.0.1:{controller.port}",
        "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
        "EPLB_AGENT_DEPLOYMENT__INSTANCE": str(case),
        "EPLB_AGENT_WAIT_FOR_WELCOME_S": f"{START_S:.0f}",
        "EPLB_AGENT_PACE__POLL_S": "0.05",
    }
    operator = DeploymentOperator(controller.port, f"{case.model}/{case}/serve/0/0")
    with own_folder() if case.executor == "ray" else nullcontext(dict[str, str]()) as more:
        group = VllmGroup(
            model, case.layout, case.num_ranks, tmp_path, extra | more, executor=case.executor
        )
        yield Served(case, model, group, operator, want)
        operator.close()
        group.kill()


def redundancy(case: Case, folder: Path) -> dict[str, str]:
    """What is said of redundant experts, or of the map that tells of them."""
    if not case.starts_in:
        return {"EPLB_VLLM_REDUNDANT_EXPERTS": str(case.redundant)}
    each = len(case.starts_in[0]) // case.num_ranks
    ranks = [[row[at : at + each] for at in range(0, len(row), each)] for row in case.starts_in]
    placement = placement_from_ranks(ranks, num_experts=NUM_EXPERTS)
    target = folder / "map.json"
    first = 1 if case.model == "deepseek" else 0
    target.write_text(format_map(placement, range(first, first + len(ranks))))
    return {"EPLB_VLLM_START_MAP": str(target)}


def test_answers_stay_the_same_through_placements(served: Served) -> None:
    served.require_same()
    initial = served.group.stats()
    require_start_in_the_map(initial, served.case)
    require_every_token_counted(initial, served.case)
    for _ in range(NUM_PLACEMENTS):
        served.place_anew()
    final = served.group.stats()
    require_every_token_counted(final, served.case)
    assert [stats.held for stats in final] != [stats.held for stats in initial]
    require_slots_hold_what_they_claim(initial, served.model)
    require_slots_hold_what_they_claim(final, served.model)
    require_switched_together(final)
    require_reload_keeps_the_placement(served)
    require_negative_control(served)


def require_start_in_the_map(stats: list[Stats], case: Case) -> None:
    """A placement that came from a file is served from the first step on."""
    if case.starts_in:
        rows = [[e for one in stats for e in one.held[i]] for i in range(len(case.starts_in))]
        assert rows == [list(row) for row in case.starts_in]


def require_every_token_counted(stats: list[Stats], case: Case) -> None:
    """What all slots received is tokens times top-k, exactly, per layer; engine side of F13."""
    tokens = sum(one.tokens for one in stats)
    # Ranks that hold the same tokens each count all of them; exchanged ones count their part.
    distinct = tokens // case.num_ranks if case.is_replicated else tokens
    for layer in range(len(stats[0].received)):
        assert sum(sum(one.received[layer]) for one in stats) == distinct * TOP_K
        assert sum(sum(one.sent[layer]) for one in stats) == tokens * TOP_K
    assert tokens
    assert not any(one.is_halted for one in stats)
    turn = sum(len(text.encode()) for text in PROMPTS) + len(PROMPTS) * (NUM_TOKENS - 1)
    assert distinct % (turn * case.num_engines) == 0, "not a whole number of turns of all prompts"


def require_slots_hold_what_they_claim(stats: list[Stats], model: Path) -> None:
    """Every slot's bytes are those of the checkpoint's expert; engine side of F39."""
    want = digests_of(model)
    for rank, one in enumerate(stats):
        for layer, row in enumerate(one.held):
            assert one.digests[layer] == [want[layer][expert] for expert in row], f"rank {rank}"
    for layer in range(len(want)):
        placed = {expert for one in stats for expert in one.held[layer]}
        assert placed == set(range(NUM_EXPERTS))


def require_switched_together(stats: list[Stats], num_placements: int = NUM_PLACEMENTS) -> None:
    """All ranks served the same epochs from the same steps on."""
    first, *others = [one.epochs for one in stats]
    assert len(first) > num_placements
    assert all(other == first for other in others)


def require_reload_keeps_the_placement(served: Served) -> None:
    """Weights loaded anew go into the placement that is served; engine side of F40."""
    before = served.group.stats()
    served.group.ask(do="reload")
    served.require_same()
    after = served.group.stats()
    assert [one.held for one in after] == [one.held for one in before]
    require_slots_hold_what_they_claim(after, served.model)
    served.place_anew()


def require_negative_control(served: Served) -> None:
    """A map that does not fit the weights is seen in every answer."""
    served.group.ask(do="roll", by=1)
    for got in served.group.generate():
        same = [one.tokens == other.tokens for one, other in zip(got, served.want, strict=True)]
        assert not any(same)


def digests_of(model: Path) -> list[list[str]]:
    """[L][E] of every expert in a checkpoint, as a slot holds it."""
    digest = import_module("moe_runtime.vllm").digest
    weights: dict[str, Tensor] = import_module("safetensors.torch").load_file(
        model / "model.safetensors"
    )
    layers = sorted({int(name.split(".")[2]) for name in weights if ".experts.0." in name})
    found: list[list[str]] = []
    for layer in layers:
        prefix = next(n for n in weights if f".{layer}." in n and ".experts.0." in n)
        stem = prefix[: prefix.index(".experts.") + len(".experts")]
        row: list[str] = []
        for expert in range(NUM_EXPERTS):
            gate, up, down = (
                weights[f"{stem}.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down")
            )
            row.append(digest({"w13": torch.cat((gate, up)), "w2": down}).hex())
        found.append(row)
    return found
