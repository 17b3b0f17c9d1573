"""What the owner of a vLLM instance chose."""

from dataclasses import dataclass
from enum import Enum

__all__ = ["ExchangeChoice", "Options", "Unowned"]


class Unowned(Enum):
    """What becomes of a model whose MoE layers the runtime cannot compute."""

    REFUSE = "refuse"
    """It is not served."""
    SERVE = "serve"
    """It is served by vLLM alone; one line says so."""


class ExchangeChoice(Enum):
    """How tokens reach their experts under tensor parallelism."""

    AUTO = "auto"
    """REPLICATED where nothing is against it, otherwise ALL_TO_ALL."""
    REPLICATED = "replicated"
    """All tensor-parallel ranks hold all tokens: each computes its own slots, vLLM adds up."""
    ALL_TO_ALL = "all_to_all"
    """Each rank takes its part of the tokens; also the way without tensor parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of the plugin."""

    num_redundant: int | None = None
    """Slots beyond one for each expert, over all ranks; None: as many as a map leaves, or none."""
    map_slots: int | None = None
    """Slots of a layer, over all ranks, in the map that is served from the start; None: no map."""
    staging_rows: int = 8
    memory_budget_bytes: int = 0
    """Most bytes that spare slots and staging may take on one rank; 0 is no bound."""
    exchange: ExchangeChoice = ExchangeChoice.AUTO
    unowned: Unowned = Unowned.REFUSE
