"""One layer at Kimi K3's proportions, alone on one rank.

Axes    T tokens   E experts   Z latent width   I expert width

Every figure with a limit is a ratio to something timed in turn with it, in the same run. All of
it is on one thread, by that thread's own time: a layer is hundreds of small products, and where a
second thread must wait for a core that something else has, each of them waits too.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import Figure
from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.contracts.step import StepView
from moe_runtime.layer.parts import rms_norm
from moe_runtime.placement.counters import LoadCounters
from moe_runtime.runtime import (
    Alone,
    Batch,
    ByGate,
    ExchangeMode,
    Install,
    LatentShape,
    MoeRuntime,
    Phase,
    Scoring,
    SelectorSettings,
    SiTU,
    SlotLayout,
    StackShape,
    Start,
    Step,
    StepKind,
    SyntheticModel,
)

__all__ = ["LAYER_ROUNDS", "NUM_TOKENS", "TOP_K", "in_turn", "measure", "runtime_of"]

_NUM_EXPERTS, TOP_K, _LATENT, _INTERMEDIATE, NUM_TOKENS = 224, 4, 256, 220, 2048
LAYER_ROUNDS, _WAVE_ROUNDS = 12, 40
_VLLM_PYTHON = Path(".venv-vllm/bin/python")
"""Of the environment that `make test-vllm` makes."""
_WAVE, _WAVE_SLOTS, _WIDER = 4, 16, 4
"""A wave moves bytes, of which experts at the layer's proportions have too few to tell: those of
a wave are four times as wide and as high, which is still a fraction of what a model's are."""
_DECODE = Step(StepKind.REAL, Phase.DECODE)
_SHAPE = StackShape(
    num_layers=1,
    width=512,
    intermediate=_INTERMEDIATE,
    selector=SelectorSettings(
        num_experts=_NUM_EXPERTS, top_k=TOP_K, scoring=Scoring.SIGMOID, factor=2.5
    ),
    activation=SiTU(),
    latent=LatentShape(_LATENT, normed=False),
)


def measure() -> list[Figure]:
    """Time the layer and a naive loop in turn, then what counting and a wave cost."""
    with _one_thread():
        runtime = runtime_of(_SHAPE)
        x_TD = torch.randn((NUM_TOKENS, _SHAPE.width), generator=torch.Generator().manual_seed(0))
        given = Batch.of(x_TD, ByGate(), _DECODE)
        naive = _Naive(runtime)
        _refuse_other_output(runtime.forward(given), naive(x_TD))
        layer_s, naive_s = in_turn(
            lambda: runtime.forward(given), lambda: naive(x_TD), rounds=LAYER_ROUNDS
        )
        counting_s = _counting_s()
        wave_s, copy_s = in_turn(*_wave(), rounds=_WAVE_ROUNDS)
    return [
        Figure("layer, 2,048 tokens", 1e3 * layer_s, "ms"),
        Figure("naive loop over experts", 1e3 * naive_s, "ms"),
        Figure("layer over naive loop", layer_s / naive_s, "", 1.0),
        *_beside_vllm(),
        Figure("counting load", 1e6 * counting_s, "us"),
        Figure("counting over a step", counting_s / layer_s, "", 0.01),
        Figure(f"a wave of {_WAVE} experts", 1e3 * wave_s, "ms"),
        Figure("a wave over a copy of its bytes", wave_s / copy_s, "", 1.2),
    ]


def _beside_vllm() -> list[Figure]:
    """Return how the layer compares with vLLM's, in vLLM's environment; nothing where it is not.

    Only what both can compute is compared, so its milliseconds are not those above.
    """
    if not _VLLM_PYTHON.is_file():
        return []
    ended = subprocess.run(
        [_VLLM_PYTHON, "-W", "ignore", "-m", "benchmarks.layer.beside_vllm"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    told: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return [
        Figure("a SwiGLU layer beside vLLM's", 1e3 * told["layer_s"], "ms"),
        Figure("the same by vLLM's fused MoE", 1e3 * told["fused_s"], "ms"),
        Figure("layer over vLLM's fused MoE", told["layer_s"] / told["fused_s"], ""),
    ]


@contextmanager
def _one_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _refuse_other_output(y_TD: Tensor, naive_TD: Tensor) -> None:
    off, size = float((y_TD - naive_TD).abs().amax()), float(naive_TD.abs().amax())
    if not off < 1e-5 * size:
        raise RuntimeError(
            f"the naive loop and the layer differ by {off}, of {size}; nothing was measured"
        )


class _Naive:
    """Each expert in turn: which tokens chose it, and what it makes of them."""

    def __init__(self, runtime: MoeRuntime) -> None:
        self._parts = runtime.model.layer(0, torch.float32)
        stacks = runtime.slots.weights(0).named()
        self._experts = list(zip(stacks["w13"], stacks["w2"], strict=True))

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Return [T, D]."""
        normed_TD = rms_norm(x_TD)
        scores_TE = torch.sigmoid(normed_TD @ self._parts.gate_XD.t())
        best = scores_TE.topk(TOP_K, dim=1)
        weights_TK = best.values / best.values.sum(dim=1, keepdim=True) * 2.5
        x_TZ = self._parts.path.enter(normed_TD)
        y_TZ = torch.zeros_like(x_TZ)
        for number, (w13_FZ, w2_ZI) in enumerate(self._experts):
            tokens, places = torch.nonzero(best.indices == number, as_tuple=True)
            hidden = SiTU()(x_TZ[tokens] @ w13_FZ.t())
            weighted = hidden @ w2_ZI.t() * weights_TK[tokens, places][:, None]
            y_TZ.index_add_(0, tokens, weighted)
        return x_TD + self._parts.path.leave(y_TZ)


def runtime_of(shape: StackShape) -> MoeRuntime:
    """Return a rank alone that holds each expert once."""
    slots = np.arange(shape.num_experts)
    start = Start(
        SlotLayout((shape.num_experts,)), slots[None], slots[None, :, None], staging_rows=_WAVE
    )
    return MoeRuntime(SyntheticModel(shape), start, peers=Alone(), mode=ExchangeMode.ALL_TO_ALL)


def _counting_s() -> float:
    """Return the seconds that one step's counts take, by the fastest of many."""
    counters = LoadCounters(num_layers=1, num_slots=_NUM_EXPERTS, num_experts=_NUM_EXPERTS)
    view = StepView(0, (NUM_TOKENS,), (_DECODE,))
    ids_TK = torch.randint(_NUM_EXPERTS, (NUM_TOKENS, TOP_K))
    received_NS = torch.bincount(ids_TK.reshape(-1), minlength=_NUM_EXPERTS)[None]

    def count() -> None:
        counters.record_step(view, padding_rows=0)
        counters.record_layer(0, view, sent=LogicalIds(ids_TK), received_NS=received_NS)

    return min(_seconds(count) for _ in range(100))


def _wave() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the cutover of a wave, and a copy of as many bytes to the same places."""
    runtime = runtime_of(
        replace(
            _SHAPE,
            selector=SelectorSettings(
                num_experts=_WAVE_SLOTS, top_k=TOP_K, scoring=Scoring.SIGMOID
            ),
            intermediate=_WIDER * _INTERMEDIATE,
            latent=LatentShape(_WIDER * _LATENT, normed=False),
        )
    )
    slots = range(0, _WAVE_SLOTS, _WAVE_SLOTS // _WAVE)
    installs = [Install(slot, row) for row, slot in enumerate(slots)]
    held_S, table_EJ = runtime.held()[0], runtime.tables()[0]
    stacks = runtime.slots.weights(0).named().values()
    pairs = [(stack[slot], stack[slot].clone()) for stack in stacks for slot in slots]

    def cut_over() -> None:
        runtime.install(0, installs, held_S)
        runtime.set_table(0, table_EJ)

    def copy() -> None:
        for target, source in pairs:
            target.copy_(source)

    return cut_over, copy


def in_turn(
    first: Callable[[], object], second: Callable[[], object], *, rounds: int
) -> tuple[float, float]:
    """Return the fastest time of each: what else the machine does only ever adds."""
    times = [(_seconds(first), _seconds(second)) for _ in range(rounds)]
    return min(one for one, _ in times), min(other for _, other in times)


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor's seconds: all is on this thread, and others only take its turns."""
    started = time.thread_time()
    work()
    return time.thread_time() - started
