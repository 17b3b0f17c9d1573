"""The process of one public balancer: layouts in, layouts out, by pipe.

Axes    L MoE layers   E logical experts   P slots   N ranks   S slots of a rank
"""

import importlib
import importlib.util
import inspect
import os
import sys
import time
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.placement.pipes import receive, send

Array = npt.NDArray[Any]
GLOBAL = (1, 1)
"""Groups and nodes: every peer packs over all ranks, as ours do."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a peer is told of the group."""

    num_slots: int
    num_ranks: int


def main() -> None:
    """Answer heat [L, E] and layout [L, P] with a layout and its milliseconds, until the end."""
    kind, path = sys.argv[1:3]
    sizes = Sizes(*map(int, sys.argv[3:5]))
    if path:
        sys.path.insert(0, path)
    given = sys.stdin.buffer
    taken = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a peer prints is no answer
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    while True:
        try:
            heat, held = receive(given), receive(given)
        except EOFError:
            return
        start = time.process_time()
        drawn = np.asarray(PEERS[kind](torch, heat, held, sizes))
        spent = 1000 * (time.process_time() - start)
        phy2log = drawn.reshape(len(heat), sizes.num_slots).astype(np.int32)
        send(taken, phy2log)
        send(taken, np.array([spent]))
        taken.flush()


def _deepseek(torch: ModuleType, heat: Array, _: Array, sizes: Sizes) -> object:
    eplb = importlib.import_module("eplb")
    given = (sizes.num_slots, *GLOBAL, sizes.num_ranks)
    return eplb.rebalance_experts(torch.from_numpy(heat), *given)[0]


def _vllm(torch: ModuleType, heat: Array, held: Array, sizes: Sizes) -> object:
    policy = importlib.import_module("vllm.distributed.eplb.policy")
    given = (sizes.num_slots, *GLOBAL, sizes.num_ranks)
    old = torch.from_numpy(held.astype(np.int64))
    return policy.EPLB_POLICIES["default"].rebalance_experts(torch.from_numpy(heat), *given, old)


def _sglang(torch: ModuleType, heat: Array, _: Array, sizes: Sizes) -> object:
    deepseek = importlib.import_module("sglang.srt.eplb.eplb_algorithms.deepseek")
    return deepseek.rebalance_experts(
        weight=torch.from_numpy(heat),
        num_replicas=sizes.num_slots,
        num_groups=GLOBAL[0],
        num_nodes=GLOBAL[1],
        num_gpus=sizes.num_ranks,
        enable_hierarchical=False,
    )[0]


def _vllm_ascend(torch: ModuleType, heat: Array, held: Array, sizes: Sizes) -> object:
    """Swift, its default; it is told the load of each slot, an expert's divided evenly.

    Its module needs torch_npu for nothing but the number of NPUs of a host. Where that is not
    installed, an empty one takes its place, and all ranks are said to be on one host.
    """
    if "torch_npu" not in sys.modules and importlib.util.find_spec("torch_npu") is None:
        sys.modules["torch_npu"] = ModuleType("torch_npu")
        vars(torch)["npu"] = SimpleNamespace(device_count=lambda: sizes.num_ranks)
    module = "vllm_ascend.eplb.core.policy.policy_swift_balancer"
    swift = importlib.import_module(module)
    table = held.reshape(len(heat), sizes.num_ranks, -1)
    counts = np.stack([np.bincount(row, minlength=heat.shape[1]) for row in held])
    load = np.take_along_axis(heat / counts, held.astype(np.intp), axis=1).reshape(table.shape)
    if inspect.signature(swift.SwiftBalanceEplb).parameters:  # as at e3bb5f570f0b
        return swift.SwiftBalanceEplb(None).rebalance_experts(table, load)[2]
    given = torch.from_numpy(table), torch.from_numpy(load)
    return swift.SwiftBalanceEplb().rebalance_experts(*given)[2]


PEERS = {"deepseek": _deepseek, "vllm": _vllm, "sglang": _sglang, "vllm-ascend": _vllm_ascend}

if __name__ == "__main__":
    main()
