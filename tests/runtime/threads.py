"""The ranks of a group as threads of this process: the same collectives, without the sockets."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from moe_runtime.contracts.torch_calls import split_rows
from moe_runtime.exchange.peers import Arrived, Pending

__all__ = ["ThreadPeers", "run_threads"]

T = TypeVar("T")

_DEADLINE_S = 60.0


class _Board:
    """Where the ranks of one group lay down what they send."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls: list[list[tuple[str, Tensor, Sequence[int]]]] = [[] for _ in range(size)]
        self._barrier = Barrier(size)

    def exchange(self, rank: int, call: tuple[str, Tensor, Sequence[int]]) -> list[Tensor]:
        """Lay down a call and return what every rank laid down for the same call."""
        self.calls[rank].append(call)
        number = len(self.calls[rank]) - 1
        self._barrier.wait(_DEADLINE_S)
        calls = [calls[number] for calls in self.calls]
        assert len({name for name, _, _ in calls}) == 1, "ranks issued different collectives"
        if call[0] == "all_gather":
            return [sent for _, sent, _ in calls]
        return [split_rows(sent, splits)[rank] for _, sent, splits in calls]

    def abort(self) -> None:
        """Break the barrier for all."""
        self._barrier.abort()


class ThreadPeers:
    """Meets `Peers` for one rank of a board."""

    def __init__(self, board: _Board, rank: int) -> None:
        self._board = board
        self.rank = rank
        self.size = board.size

    def all_gather(self, rows: Tensor, rows_N: Sequence[int]) -> Tensor:
        """Return the rows of every rank."""
        arrived = self._board.exchange(self.rank, ("all_gather", rows, ()))
        assert [len(a) for a in arrived] == list(rows_N), "ranks disagree on how much is gathered"
        return torch.cat(arrived)

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Return the rows that every rank sent to this one."""
        arrived = self._board.exchange(self.rank, ("all_to_all", rows, sent))
        assert [len(a) for a in arrived] == list(received), "ranks disagree on how much is sent"
        return torch.cat(arrived)

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], *, what: str
    ) -> Pending:
        """Return the rows that every rank sent to this one, arrived."""
        del what
        return Arrived(self.all_to_all(rows, sent, received))

    def leave(self) -> None:
        """Leave the group; whoever waits for this rank gets BrokenBarrierError."""
        self._board.abort()


def run_threads(work: Callable[[ThreadPeers], T], *, num_ranks: int) -> list[T]:
    """Return work(peers) of every rank, run in a thread each."""
    board = _Board(num_ranks)
    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(work, ThreadPeers(board, rank)) for rank in range(num_ranks)]
        return [future.result(timeout=_DEADLINE_S) for future in futures]
