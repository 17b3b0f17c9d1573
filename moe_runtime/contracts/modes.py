"""The ways in which tokens can reach their experts."""

from enum import Enum

__all__ = ["ExchangeMode"]


class ExchangeMode(Enum):
    """How tokens reach their experts; in one step the same on all ranks of a group."""

    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    MC2 = "mc2"
    FUSED_MC2 = "fused_mc2"
