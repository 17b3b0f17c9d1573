"""The collectives over a real gloo group."""

import pytest
import torch
import torch.distributed as dist

from moe_runtime.contracts.errors import ExchangeFailed
from moe_runtime.contracts.torch_calls import new_group
from moe_runtime.exchange.peers import GroupPeers
from tests.runtime.ranks import run_ranks

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def gather_uneven(rank: int, rows_N: tuple[int, ...]) -> list[int]:
    own = torch.full((rows_N[rank], 2), rank)
    gathered = GroupPeers().all_gather(own, rows_N)
    return gathered[:, 1].numpy().tolist()


@pytest.mark.parametrize("rows_N", [(2, 0, 3), (0, 0, 0)])
def test_a_gather_takes_uneven_numbers_of_rows(rows_N: tuple[int, ...]) -> None:
    want = [rank for rank, rows in enumerate(rows_N) for _ in range(rows)]
    assert run_ranks(gather_uneven, rows_N, num_ranks=3) == [want] * 3


def lose_a_peer(rank: int, _: None) -> str:
    group = new_group()
    peers = GroupPeers(group)
    peers.all_gather(torch.zeros(1), [1, 1])
    if rank == 1:
        dist.destroy_process_group(group)
        return "left"
    try:
        peers.all_gather(torch.zeros(1), [1, 1])
    except ExchangeFailed as failed:
        return str(failed)
    return "nothing was noticed"


def test_a_lost_peer_is_a_typed_error_that_names_who_saw_it() -> None:
    told, left = run_ranks(lose_a_peer, None, num_ranks=2, deadline_s=10)
    assert told.startswith("rank 0: an exchange of rows did not complete")
    assert left == "left"
