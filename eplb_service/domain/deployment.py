"""Who serves what: the identity of a deployment, and what each of its ranks is."""

from dataclasses import dataclass
from enum import StrEnum

from eplb_service.domain.shares import Ownership


class CountMeaning(StrEnum):
    """What a reported slot count says."""

    RECEIVED = "received"
    """Rows that the slot computed; summing over ranks gives the load."""
    PARTIAL = "partial"
    """The router's part of a rank; summing over ranks gives the load."""
    REPLICATED = "replicated"
    """The same tokens counted on every rank of a group of `replicas`; the sum is divided."""


@dataclass(frozen=True, slots=True)
class Counting:
    """What a rank's slot counts say, and who says the same."""

    meaning: CountMeaning
    num_counters: int = 1
    """Ranks that count the same tokens; 1 unless the meaning is REPLICATED."""


@dataclass(frozen=True, slots=True)
class DeploymentIdentity:
    """What makes two deployments different."""

    model: str
    instance: str
    role: str
    """"serve", "prefill", "decode" or "draft"."""
    stage: int
    """Pipeline stage."""
    group: str
    """Expert-parallel group within the instance."""
    weight_format: str

    @property
    def name(self) -> str:
        """The deployment's name in commands, metrics and the store."""
        return f"{self.model}/{self.instance}/{self.role}/{self.stage}/{self.group}"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The MoE part of a model as one deployment serves it."""

    layers: tuple[int, ...]
    """The model's own number of each MoE layer held; may be empty."""
    num_experts: int
    num_shared: int
    """Shared experts kept in slots."""
    top_k: int
    bytes_per_expert: int
    """Bytes of one routed expert of one layer, all its tensors."""
    num_groups: int = 1
    """Groups into which the router divides the experts, in order; 1 where it has none."""


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What one rank is and can do; constant for one incarnation."""

    rank: int
    num_ranks: int
    node: str
    supernode: str
    adapter: str
    """Engine adapter, for people."""
    counting: Counting
    ownership: Ownership
    num_slots: int
    """Slots of this rank."""
    staging_rows: int
    """Experts that fit into the rank's staging memory at one time."""
    sets_shares: bool
    """Whether it takes shares; otherwise its tables change with its placement alone."""
