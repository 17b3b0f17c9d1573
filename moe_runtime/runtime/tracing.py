"""The layers of a rank as modules that torch.export and torch.compile trace."""

import torch.distributed as dist

from moe_runtime.backends.cpu_traced import TracedCpuBackend
from moe_runtime.contracts.errors import Unsupported
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.exchange.traced import AloneTraced, GroupTraced
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.layer.traced import TracedLayer
from moe_runtime.runtime.engine import MoeRuntime

__all__ = ["traced_layer"]


def traced_layer(
    runtime: MoeRuntime, layer: int, *, group: dist.ProcessGroup | None = None
) -> TracedLayer:
    """Return one layer of a rank; it shares slots, tables and counters with the runtime.

    group    the ranks that exchange tokens, for a rank of several; they exchange by AllGather,
             and bring equal numbers of rows to each run, padding included

    Raises Unsupported for other exchanges, whose sizes follow from what tokens chose, for other
    devices than CPUs, and for kinds of routing and biases that the host checks.
    """
    num_ranks, reasons = runtime.layout.num_ranks, list[str]()
    members = 1 if group is None else dist.get_world_size(group)
    if members != num_ranks:
        reasons.append(f"{num_ranks} ranks exchange, and the group to trace over has {members}")
    if num_ranks > 1 and runtime.mode is not ExchangeMode.ALL_GATHER:
        reasons.append("only AllGather has sizes that do not follow from what tokens chose")
    if runtime.device.kind is not DeviceKind.CPU:
        reasons.append(f"nothing was ever traced on {runtime.device.kind.value}")
    if reasons:
        raise Unsupported("a traced layer", reasons=reasons)
    ranks = AloneTraced() if group is None else GroupTraced(group)
    first_slot = runtime.layout.base(ranks.rank)
    return TracedLayer(
        runtime.layers[layer], TracedCpuBackend(), ranks=ranks, first_slot=first_slot
    )
