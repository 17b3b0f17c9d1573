"""The collectives over a real gloo group."""

import pytest
import torch
import torch.distributed as dist

from moe_runtime.contracts.errors import ExchangeFailed
from moe_runtime.contracts.exchange_errors import ExchangeLate
from moe_runtime.contracts.torch_calls import new_group
from moe_runtime.exchange.peers import GroupPeers
from moe_runtime.exchange.team import TeamPeers
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


def wait_for_one_that_never_comes(rank: int, _: None) -> str:
    peers = GroupPeers(new_group(), deadline_s=0.3)
    if rank == 1:
        return "never entered"
    rows = torch.zeros((2, 1))
    try:
        peers.start_all_to_all(rows, [1, 1], [1, 1], what="token rows").wait()
    except ExchangeLate as late:
        return str(late)
    return "nothing was noticed"


def test_a_collective_that_a_peer_never_enters_ends_at_its_deadline() -> None:
    told, _ = run_ranks(wait_for_one_that_never_comes, None, num_ranks=2)
    assert told.startswith("rank 0: not every rank entered the exchange of token rows within 0.3 s")


def exchange_in_pieces(rank: int, _: None) -> list[list[int]]:
    """Two collectives on their way at once, waited for in the other order."""
    peers = GroupPeers()
    first = peers.start_all_to_all(torch.tensor([rank, rank]), [1, 1], [1, 1], what="first")
    second = peers.start_all_to_all(torch.tensor([rank + 7] * 2), [1, 1], [1, 1], what="second")
    return [second.wait().numpy().tolist(), first.wait().numpy().tolist()]


def test_several_exchanges_may_be_on_their_way() -> None:
    assert run_ranks(exchange_in_pieces, None, num_ranks=2) == [[[7, 8], [0, 1]]] * 2


def gather_in_teams(rank: int, members: tuple[tuple[int, ...], ...]) -> list[int]:
    team = next(m for m in members if rank in m)
    peers = TeamPeers(GroupPeers(), team)
    assert team[peers.rank] == rank
    rows_N = [1 + m for m in range(peers.size)]
    return peers.all_gather(torch.full((1 + peers.rank,), rank), rows_N).numpy().tolist()


@pytest.mark.parametrize("members", [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 3), (2,))])
def test_teams_are_groups_of_their_own(members: tuple[tuple[int, ...], ...]) -> None:
    want = {
        member: [m for i, m in enumerate(team) for _ in range(i + 1)]
        for team in members
        for member in team
    }
    assert run_ranks(gather_in_teams, members, num_ranks=4) == [want[r] for r in range(4)]
