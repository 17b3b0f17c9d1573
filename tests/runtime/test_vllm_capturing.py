# pyright: reportUnknownMemberType=false
# The rule is off in this file only, because torch leaves tolist() unannotated.
"""What vLLM is told of the experts that were chosen."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from moe_runtime.contracts.ids import LogicalIds
from moe_runtime.exchange.peers import Alone
from moe_runtime.vllm.capturing import EngineRecorder


@dataclass
class Listener:
    """A router of vLLM on which its capturer has, or has not, hung a function."""

    capture_fn: Callable[[Tensor], None] | None = None
    told: list[list[list[int]]] = field(default_factory=list[list[list[int]]])

    def listen(self) -> None:
        self.capture_fn = lambda ids: self.told.append(cast("list[list[int]]", ids.tolist()))


def test_each_row_of_the_batch_is_told_and_padding_is_expert_zero() -> None:
    listener, deaf = Listener(), Listener()
    listener.listen()
    real_T = torch.tensor([True, False, True, False])
    recorder = EngineRecorder((deaf, listener), real_T, Alone(), (4,))
    chosen = LogicalIds(torch.tensor([[5, 2], [7, 1]]))
    recorder.record(0, chosen)
    recorder.record(1, chosen)
    assert listener.told == [[[5, 2], [0, 0], [7, 1], [0, 0]]]
    assert not deaf.told
