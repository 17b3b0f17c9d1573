# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""The experts of every token, as vLLM's own capturer has them.

vLLM hands them to its API only from its second model runner, which needs a Triton that has no
back end for CPUs. So its capturer is bound here as that runner binds it, and read step by step.
"""

from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Ids = list[list[list[int]]]
"""[T][L][K], the experts of one token and layer in ascending order."""


class GatheringByGloo:
    """In the place of vLLM's tensor-parallel group, whose own gathering on CPUs takes no integers.

    Its capturer asks for that where ranks have pieces of their engine's rows.
    """

    def all_gather(self, rows: Tensor, dim: int) -> Tensor:
        """Return the rows of all ranks."""
        assert dim == 0
        group = import_module("vllm.distributed").get_tp_group()
        parts = [torch.empty_like(rows) for _ in range(group.world_size)]
        dist.all_gather(parts, rows.contiguous(), group=group.cpu_group)
        return torch.cat(parts)


class RoutedIds:
    """Binds vLLM's capturer to a worker's model and collects what it holds after each step."""

    def __init__(self, worker: Any) -> None:
        module = import_module("vllm.model_executor.layers.fused_moe.routed_experts_capturer")
        config = worker.vllm_config
        vars(module)["get_tp_group"] = GatheringByGloo
        rows = config.scheduler_config.max_num_batched_tokens
        self._capturer = module.RoutedExpertsCapturer(rows, config)
        module.bind_routed_experts_capturer(worker.get_model(), self._capturer)
        self._by_request: dict[str, Ids] = {}
        self._runner = worker.model_runner
        self._run = self._runner.execute_model
        self._runner.execute_model = self._execute

    def of(self, request: str) -> Ids:
        """Return, and forget, the experts of a request's tokens: those that went through it."""
        (name,) = [n for n in self._by_request if n.partition("-")[0] == request]
        return self._by_request.pop(name)

    def _execute(self, output: Any, *values: Any, **keywords: Any) -> Any:
        returned = self._run(output, *values, **keywords)
        start = 0
        for name in self._runner.input_batch.req_ids:
            count = output.num_scheduled_tokens.get(name, 0)
            if count:
                rows = self._capturer.device_buffer[start : start + count]
                self._by_request.setdefault(name, []).extend(rows.sort(dim=-1).values.tolist())
                start += count
        return returned
