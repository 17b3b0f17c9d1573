"""How the ranks of one deployment exchange tokens: settings, the same on every rank."""

from dataclasses import dataclass

from moe_runtime.capture.step import CaptureSink
from moe_runtime.contracts.errors import ShapeMismatch, require_type
from moe_runtime.contracts.modes import ExchangeMode
from moe_runtime.contracts.spread import OWN, OwnTokens, Replicated, Sharded, TokenSpread
from moe_runtime.exchange.blocks import EVEN, BlockRows, EvenRows, UnevenRows
from moe_runtime.exchange.choosing import Capability, SocFamily
from moe_runtime.exchange.limits import UNLIMITED, Limits

__all__ = ["ByTable", "Nodes", "OneNode", "Traffic"]


def _refuse_below(what: str, number: int, *, least: int) -> None:
    """Raise ShapeMismatch for what is no whole number, or too small a one."""
    if not isinstance(number, int) or number < least:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShapeMismatch(
            f"{what} of {number}", got=(), expected=f"a whole number, {least} or more"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTable:
    """The mode is chosen for each step, by `exchange.choosing.choose`."""

    soc: SocFamily
    format: str
    """Of the experts' weights."""
    capabilities: frozenset[Capability]
    override: ExchangeMode | None = None
    """An operator's choice; refused with a reason where it cannot serve."""
    adapters: bool = False
    compared: bool = False
    """Whether ranks compare choice and sizes in every step, for one more collective."""


@dataclass(frozen=True, slots=True)
class OneNode:
    """MC2 sends to every rank directly."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """MC2 is hierarchical. Raises ShapeMismatch for nodes without ranks."""

    ranks_per_node: int

    def __post_init__(self) -> None:
        _refuse_below("ranks of a node", self.ranks_per_node, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Everything that decides what is exchanged and how."""

    mode: ExchangeMode | ByTable
    spread: TokenSpread = OWN
    block_rows: BlockRows = EVEN
    """Of MC2."""
    nodes: OneNode | Nodes = OneNode()
    buffer_rows: int = 4096
    """Rows of a rank for which MC2's and fused MC2's buffers are built."""
    limits: Limits = UNLIMITED
    """Of MC2's operators."""
    capture: CaptureSink | None = None
    """Who asked for what the routers choose; a sink on all ranks or on none."""
    num_adapters: int = 0
    """LoRA adapters on routed experts; with any, every row carries the number of one."""

    def __post_init__(self) -> None:
        own = "of moe_runtime"
        require_type("mode", self.mode, (ExchangeMode, ByTable), of=own)
        require_type("spread", self.spread, (OwnTokens, Replicated, Sharded), of=own)
        require_type("block_rows", self.block_rows, (EvenRows, UnevenRows), of=own)
        require_type("nodes", self.nodes, (OneNode, Nodes), of=own)
        _refuse_below("buffer_rows", self.buffer_rows, least=0)
        _refuse_below("num_adapters", self.num_adapters, least=0)
