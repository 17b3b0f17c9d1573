"""The layers of a rank as modules that torch.export and torch.compile trace."""

from moe_runtime.backends.cpu_traced import TracedCpuBackend
from moe_runtime.contracts.errors import Unsupported
from moe_runtime.formats.capabilities import DeviceKind
from moe_runtime.layer.traced import TracedLayer
from moe_runtime.runtime.engine import MoeRuntime

__all__ = ["traced_layer"]


def traced_layer(runtime: MoeRuntime, layer: int) -> TracedLayer:
    """Return one layer of a rank alone; it shares slots, tables and counters with the runtime.

    Raises Unsupported for a rank of several, whose exchanges size what they send by what tokens
    chose, for other devices than CPUs, and for kinds of routing and biases that the host checks.
    """
    reasons: list[str] = []
    if runtime.layout.num_ranks > 1:
        reasons.append("exchanges between ranks are not traced")
    if runtime.device.kind is not DeviceKind.CPU:
        reasons.append(f"nothing was ever traced on {runtime.device.kind.value}")
    if reasons:
        raise Unsupported("a traced layer", reasons=reasons)
    return TracedLayer(runtime.layers[layer], TracedCpuBackend())
