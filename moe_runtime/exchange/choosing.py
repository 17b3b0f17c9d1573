"""Which mode a step uses: one table over numbers that every rank knows.

    family  if                                                       then
    any     one rank                                                 AllGather
    any     adapters on experts (LoRA)                               All2All
    A2      MC2 takes it                                             MC2, else AllGather
    A3, CPU fused MC2 takes it                                       fused MC2
    A3, CPU MC2 takes it                                             MC2, else All2All
    A5      MC2 takes it                                             MC2
    A5      no more ranks than experts per token                     AllGather, else All2All
    310P                                                             AllGather

The families and their order are those of vllm-ascend's selection; unlike there, formats, row
counts and the operators' limits are asked for every mode, and a mode is never chosen because a
package happens to be importable.
"""

from dataclasses import dataclass
from enum import Enum

from moe_runtime.contracts.exchange_errors import BeyondLimit, ImpossibleMode
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.exchange.limits import MC2_A2, MC2_A3, UNLIMITED, Limits, check_build

__all__ = ["Capability", "Deployment", "SocFamily", "choose", "limits_of", "mode_refusals"]


class SocFamily(Enum):
    """Families of devices; CPU is the specification."""

    A2 = "A2"
    A3 = "A3"
    A5 = "A5"
    P310 = "310P"
    CPU = "CPU"


class Capability(Enum):
    """What was probed to be there, on every rank."""

    MC2 = "mc2"
    FUSED_MC2 = "fused mc2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What does not change between steps; the same on every rank."""

    soc: SocFamily
    slots_per_rank: tuple[int, ...]
    top_k: int
    width: int
    """Of the routed part."""
    format: str
    """Of the experts' weights."""
    capabilities: frozenset[Capability]
    block_rows: int
    """Rows of a rank that MC2's and fused MC2's buffers are built for."""
    adapters: bool = False


_LIMITS = {
    SocFamily.A2: MC2_A2,
    SocFamily.A3: MC2_A3,
    SocFamily.A5: MC2_A3,
    SocFamily.P310: UNLIMITED,
    SocFamily.CPU: UNLIMITED,
}
_FUSED_FORMATS = frozenset({"w8a8", "w4a8"})
_MC2 = (ExchangeMode.MC2, ExchangeMode.FUSED_MC2)


def choose(of: Deployment, *, rows: int, override: ExchangeMode | None = None) -> ExchangeMode:
    """Return the mode of a step.

    rows        the most rows that any rank brings to it
    override    an operator's choice, taken if the deployment can do it

    Raises ImpossibleMode for an override that cannot serve, on every rank alike.
    """
    if override is not None:
        if reasons := mode_refusals(override, of, rows=rows):
            raise ImpossibleMode(override.value, reasons=reasons)
        return override
    return next(mode for mode in _candidates(of) if not mode_refusals(mode, of, rows=rows))


def limits_of(soc: SocFamily) -> Limits:
    """Return what MC2's operators take on a family; a 310P has none of them and no limits."""
    return _LIMITS[soc]


def mode_refusals(mode: ExchangeMode, of: Deployment, *, rows: int) -> tuple[str, ...]:
    """Return every reason against a mode; AllGather has none, and All2All only on 310P."""
    reasons: list[str] = []
    if of.soc is SocFamily.P310 and mode is not ExchangeMode.ALL_GATHER:
        reasons.append("a 310P has AllGather only")
    if mode in _MC2 and of.soc is not SocFamily.P310:
        reasons += _mc2_refusals(of, rows=rows)
    if mode is ExchangeMode.MC2 and Capability.MC2 not in of.capabilities:
        reasons.append("the operators of MC2 are not there")
    if mode is ExchangeMode.FUSED_MC2:
        if Capability.FUSED_MC2 not in of.capabilities:
            reasons.append("the operator of fused MC2 is not there")
        if of.soc is not SocFamily.CPU and of.format not in _FUSED_FORMATS:
            reasons.append(f"fused MC2 takes {sorted(_FUSED_FORMATS)}, not {of.format}")
    return tuple(reasons)


def _mc2_refusals(of: Deployment, *, rows: int) -> list[str]:
    limits: Limits = _LIMITS[of.soc]
    reasons = ["adapters on experts are not exchanged by it"] if of.adapters else []
    most = min(of.block_rows, limits.rows)
    if rows > most:
        reasons.append(f"a rank brings {rows} rows, the buffers hold {most}")
    try:
        check_build(
            limits,
            top_k=of.top_k,
            width=of.width,
            slots_per_rank=of.slots_per_rank,
            even=of.soc is not SocFamily.CPU,
        )
    except BeyondLimit as beyond:
        reasons.append(f"{beyond.limit}: {beyond.got}")
    return reasons


def _candidates(of: Deployment) -> tuple[ExchangeMode, ...]:
    """Return modes in order of preference; the last one always serves."""
    gather, direct = ExchangeMode.ALL_GATHER, ExchangeMode.ALL_TO_ALL
    num_ranks = len(of.slots_per_rank)
    if num_ranks == 1 or of.soc is SocFamily.P310:
        return (gather,)
    if of.adapters:
        return (direct,)
    match of.soc:
        case SocFamily.A2:
            return (ExchangeMode.MC2, gather)
        case SocFamily.A5:
            return (ExchangeMode.MC2, gather if num_ranks <= of.top_k else direct)
        case SocFamily.A3 | SocFamily.CPU:
            return (ExchangeMode.FUSED_MC2, ExchangeMode.MC2, direct)
