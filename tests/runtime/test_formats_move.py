"""Experts of every format move whole, in mid-run, and a placement changes no result.

F34: every tensor of an expert travels, scales and what is derived included; F35: into the
memory that the layer reads.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from moe_runtime.formats.fusing import fused_lists, manifest
from moe_runtime.placement.slots import EMPTY, digest
from moe_runtime.runtime import (
    Batch,
    ByGate,
    ExchangeMode,
    Install,
    MoeRuntime,
    Packing,
    Peers,
    Phase,
    StackShape,
    Step,
    StepKind,
    SwiGLU,
    SyntheticModel,
    WeightFormat,
)
from tests.runtime.routings import KINDS, stack_of
from tests.runtime.stacks import Layout, random_layout, tokens
from tests.runtime.threads import run_threads

DECODE = Step(StepKind.REAL, Phase.DECODE)
PACKINGS = [Packing(weights) for weights in WeightFormat] + [
    Packing(WeightFormat.W4A8, group_size=8),
    Packing(WeightFormat.W4A16, group_size=8),
]
SHAPE = replace(
    stack_of(KINDS["softmax"], activation=SwiGLU(), num_layers=1),
    width=40,
    intermediate=24,
    biased=True,
)


def built(
    shape: StackShape,
    layout: Layout,
    peers: Peers,
    packing: Packing,
    mode: ExchangeMode = ExchangeMode.ALL_TO_ALL,
) -> MoeRuntime:
    return MoeRuntime(
        SyntheticModel(shape),
        layout.start(peers.rank, staging_rows=9),
        peers=peers,
        mode=mode,
        packing=packing,
    )


def move_to(runtime: MoeRuntime, layout: Layout, rank: int, left: set[str]) -> None:
    """Install another placement in place; `left` names tensors that are left behind."""
    held_S = layout.held(rank)[0]
    changed = np.flatnonzero((held_S != runtime.held()[0]) & (held_S != EMPTY)).tolist()
    for row, slot in enumerate(changed):
        fresh = runtime.expert(0, int(held_S[slot])).named()
        for name, staged in runtime.slots.staging_tensors(row).items():
            old = runtime.slots.expert_tensors(0, slot)[name]
            staged.copy_(old if name in left else fresh[name][0])
    runtime.install(0, [Install(s, r) for r, s in enumerate(changed)], held_S)
    runtime.set_table(0, layout.tables_NLEJ[rank, 0])


def held_digests(runtime: MoeRuntime) -> list[bool]:
    """Tell for each slot that holds an expert whether it is that expert, by its content."""
    return [
        digest(runtime.slots.expert_tensors(0, slot))
        == digest({n: t[0] for n, t in runtime.expert(0, int(expert)).named().items()})
        for slot, expert in enumerate(runtime.held()[0])
        if expert != EMPTY
    ]


def addresses(runtime: MoeRuntime) -> list[int]:
    return [stack.data_ptr() for stack in runtime.slots.weights(0).named().values()]


def outputs(
    packing: Packing,
    layouts: list[Layout],
    left: set[str],
    mode: ExchangeMode = ExchangeMode.ALL_TO_ALL,
) -> tuple[list[Tensor], bool]:
    """Return both ranks' rows under each placement, moved to one after the other."""

    def serve(peers: Peers) -> tuple[list[Tensor], bool]:
        runtime = built(SHAPE, layouts[0], peers, packing, mode)
        at_start, whole = addresses(runtime), True
        rows: list[Tensor] = []
        for layout in layouts:
            move_to(runtime, layout, peers.rank, left)
            whole = whole and all(held_digests(runtime))
            given = Batch.of(tokens(SHAPE, 6, seed=peers.rank), ByGate(), DECODE)
            rows.append(runtime.forward(given))
        assert addresses(runtime) == at_start
        return rows, whole

    ended = run_threads(serve, num_ranks=2)
    rows = [torch.cat(by_rank) for by_rank in zip(*(rows for rows, _ in ended), strict=True)]
    return rows, all(whole for _, whole in ended)


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("mode", ExchangeMode)
def test_f34_every_tensor_of_every_format_moves_and_outputs_stay(
    packing: Packing, mode: ExchangeMode
) -> None:
    layouts = [random_layout(SHAPE, (6, 5), seed=seed, num_empty=1) for seed in range(4)]
    rows, whole = outputs(packing, layouts, left=set(), mode=mode)
    assert whole
    for later in rows[1:]:
        assert torch.allclose(rows[0], later, rtol=1e-5, atol=1e-5 * float(rows[0].abs().max()))


FUSED, DIRECT = ExchangeMode.FUSED_MC2, ExchangeMode.ALL_TO_ALL


@pytest.mark.parametrize("mode", [DIRECT, FUSED])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_f34_a_tensor_left_behind_is_seen_by_its_digest_and_in_the_output(
    packing: Packing, mode: ExchangeMode
) -> None:
    """Where a mode reads scales of its own, the format's are read by the way it falls back to."""
    layouts = [random_layout(SHAPE, (6, 5), seed=seed, num_empty=1) for seed in range(2)]
    right, _ = outputs(packing, layouts, left=set(), mode=mode)
    names = built_names(packing, mode)
    assert names == manifest(packing.format, biased=True, is_fused=mode is FUSED)
    own = {name for name in names if name.endswith("_fused")}
    unread = {f"{name.removesuffix('_fused')}_scale" for name in own}
    for name in names:
        rows, whole = outputs(packing, layouts, left={name}, mode=mode)
        if name in unread:
            assert not whole, name
            assert torch.equal(rows[1], right[1]), name
            continue
        assert not whole, name
        assert torch.equal(rows[0], right[0]), name
        assert not torch.allclose(rows[1], right[1], rtol=1e-4, atol=1e-4), name


@pytest.mark.parametrize("packing", [Packing(WeightFormat.W8A8), Packing(WeightFormat.W4A8)])
def test_lists_of_a_fused_operator_show_what_slots_hold_after_a_move(packing: Packing) -> None:
    first, then = (random_layout(SHAPE, (9,), seed=seed) for seed in range(2))

    def moved(peers: Peers) -> bool:
        runtime = built(SHAPE, first, peers, packing, FUSED)
        lists = fused_lists(runtime.slots.weights(0)).by_name
        assert lists.keys() == manifest(packing.format, biased=True, is_fused=True)
        move_to(runtime, then, peers.rank, set())
        experts = [runtime.expert(0, int(e)).named() for e in then.held(peers.rank)[0]]
        return all(
            digest({name: lists[name][slot] for name in lists})
            == digest({name: stack[0] for name, stack in expert.items()})
            for slot, expert in enumerate(experts)
        )

    assert run_threads(moved, num_ranks=1) == [True]


def built_names(packing: Packing, mode: ExchangeMode) -> set[str]:
    def names(peers: Peers) -> set[str]:
        layout = random_layout(SHAPE, (8,), seed=0)
        return set(built(SHAPE, layout, peers, packing, mode).slots.weights(0).named())

    (found,) = run_threads(names, num_ranks=1)
    return found


@settings(max_examples=20)
@given(
    packing=st.sampled_from(PACKINGS),
    mode=st.sampled_from(ExchangeMode),
    slots=st.lists(st.integers(3, 8), min_size=1, max_size=3).filter(lambda s: sum(s) >= 8),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_any_placement_of_any_format_gives_the_same_rows(
    packing: Packing, mode: ExchangeMode, slots: list[int], seed: int, data: st.DataObject
) -> None:
    """Quantised products are exact and rounded once, so only the last sum may differ."""
    rows_N = data.draw(st.tuples(*[st.integers(0, 4) for _ in slots]), label="rows")

    def serve(layout: Layout, peers: Peers) -> Tensor:
        runtime = MoeRuntime(
            SyntheticModel(SHAPE),
            layout.start(peers.rank),
            peers=peers,
            mode=mode,
            packing=packing,
        )
        x_TD = tokens(SHAPE, rows_N[peers.rank], seed=peers.rank)
        return runtime.forward(Batch.of(x_TD, ByGate(), DECODE))

    layouts = [random_layout(SHAPE, tuple(slots), seed=seed + turn) for turn in range(2)]
    first, second = (
        torch.cat(run_threads(partial(serve, layout), num_ranks=len(slots))) for layout in layouts
    )
    assert first.isfinite().all()
    bound = 1e-5 * float(first.abs().max()) if first.numel() else 0.0
    assert torch.allclose(first, second, rtol=1e-5, atol=bound)
