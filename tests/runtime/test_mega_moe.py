"""MegaMoe: probed by its own package, and its buffer has one size on all ranks, or none."""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from moe_runtime.backends.npu import mega_moe
from moe_runtime.contracts.exchange_errors import RanksDisagree
from moe_runtime.exchange.mega_moe import BufferSize, buffer_size, symmetric_buffer
from moe_runtime.exchange.peers import Peers
from moe_runtime.runtime import SlotLayout
from tests.runtime.threads import run_threads

HOST = torch.device("cpu")
SIZE = buffer_size(SlotLayout((3, 3)), block_rows=16, num_pairs=4, hidden=64, intermediate=32)


def test_the_buffer_follows_from_numbers_that_no_rank_has_for_itself() -> None:
    assert (
        BufferSize(
            num_experts=6,
            num_max_tokens_per_rank=16,
            num_topk=4,
            hidden=64,
            intermediate_hidden=64,
            max_recv_token_num=16 * 2 * 3,
        )
        == SIZE
    )
    empty = buffer_size(SlotLayout((3, 3)), block_rows=0, num_pairs=4, hidden=64, intermediate=32)
    assert empty.num_max_tokens_per_rank == 1


def test_ranks_with_one_size_allocate_it() -> None:
    given: list[BufferSize] = []

    def work(peers: Peers) -> BufferSize:
        return symmetric_buffer(peers, SIZE, lambda size: given.append(size) or size, home=HOST)

    assert run_threads(work, num_ranks=2) == [SIZE, SIZE]
    assert given == [SIZE, SIZE]


def test_ranks_with_other_sizes_allocate_nothing() -> None:
    given: list[BufferSize] = []

    def allocate(size: BufferSize) -> None:
        given.append(size)

    def work(peers: Peers) -> None:
        size = replace(SIZE, num_max_tokens_per_rank=16 + peers.rank)
        with pytest.raises(RanksDisagree, match=r"num_max_tokens_per_rank \[16, 17\] by rank"):
            symmetric_buffer(peers, size, allocate, home=HOST)

    run_threads(work, num_ranks=2)
    assert not given


def package(monkeypatch: pytest.MonkeyPatch, **operators: object) -> None:
    whole, ops = ModuleType("cann_ops_transformer"), ModuleType("cann_ops_transformer.ops")
    whole.__spec__ = ops.__spec__ = ModuleSpec("cann_ops_transformer", None)
    vars(ops).update(operators)
    monkeypatch.setitem(sys.modules, "cann_ops_transformer", whole)
    monkeypatch.setitem(sys.modules, "cann_ops_transformer.ops", ops)


def test_its_own_package_is_asked_for_and_named() -> None:
    assert mega_moe() == "the package cann_ops_transformer is not installed"


def test_a_package_without_its_operators_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    package(monkeypatch, mega_moe=len)
    assert mega_moe() == "cann_ops_transformer does not have get_symm_buffer_for_mega_moe"


def test_a_whole_package_has_nothing_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    package(monkeypatch, mega_moe=len, get_symm_buffer_for_mega_moe=len)
    assert not mega_moe()
