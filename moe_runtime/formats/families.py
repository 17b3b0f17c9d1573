"""Which family of devices a chip is of, by its name."""

from moe_runtime.contracts.npu_errors import NpuUnavailable
from moe_runtime.formats.capabilities import DeviceKind

__all__ = ["family_of"]

_FAMILIES = (
    ("910_95", DeviceKind.A5),
    ("950", DeviceKind.A5),
    ("910_93", DeviceKind.A3),
    ("910B", DeviceKind.A2),
    ("310P", DeviceKind.P310),
)


def family_of(soc: str) -> DeviceKind:
    """Return what kind of device a chip's name means; raises NpuUnavailable.

    >>> family_of("Ascend910B3"), family_of("Ascend910_9391")
    (<DeviceKind.A2: 'ascend-a2'>, <DeviceKind.A3: 'ascend-a3'>)
    """
    for part, kind in _FAMILIES:
        if part in soc:
            return kind
    known = ", ".join(part for part, _ in _FAMILIES)
    raise NpuUnavailable(f"the chip is called {soc!r}, expected a name with one of {known} in it")
