"""What operators may set, as the controller reads it. Settings proper live in the attic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from eplb_service.controller.errands import Cadence
from eplb_service.controller.machine_state import Pace
from eplb_service.domain.report import Phase
from eplb_service.gates.context import Budget
from eplb_service.gates.settings import GateSettings
from eplb_service.load.group import WindowTerms
from eplb_service.policies.terms import Terms


@dataclass(frozen=True, slots=True)
class RankCosts:
    """What tokens and experts cost the ranks that have them."""

    speeds: tuple[float, ...] = ()
    """[N] tokens per second of each rank, in any unit; empty: all alike."""
    per_expert: float = 0.0
    """What an expert with tokens costs its rank beside them in a step, in tokens."""

    def terms(self, *, num_ranks: int, num_steps: int) -> Terms:
        """What a rank's load is made of, in heat of so many steps.

        Speeds are of a deployment with as many ranks; elsewhere ranks are taken to be alike.
        """
        speeds = self.speeds if len(self.speeds) == num_ranks else ()
        return Terms(fixed=self.per_expert * num_steps, speeds=speeds)


@dataclass(frozen=True, slots=True)
class PlanningTerms:
    """When and how plans are drawn."""

    is_automatic: bool
    policy: str
    interval_s: float
    deadline_s: float
    phase: Phase | None
    """Heat of this phase alone; None: both together."""
    budget: Budget
    round_bytes: int
    max_slowdown: float
    """Share by which moving may lengthen a step."""
    distances: tuple[tuple[float, ...], ...] | None
    """[N][N] price of the way from each rank to each other; None: by node."""
    costs: RankCosts


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """When shares are drawn without any weight being moved."""

    is_automatic: bool
    interval_s: float
    deadline_s: float
    """In which all ranks must use a revision; idle time is not counted."""
    min_gain: float
    """Drop of a layer's imbalance, beyond noise, from which it gets other rows."""
    locality_price: float
    """Tokens of imbalance that are given to keep one token on its node, or on its rank."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Every choice that is not a rule."""

    planning: PlanningTerms
    shares: ShareTerms
    gates: GateSettings
    windows: WindowTerms
    pace: Pace
    cadence: Cadence
    num_redundant: int | None
    """Slots per layer beyond one for every expert that ranks must bring; None: any."""


class Tuner(Protocol):
    """Turns an operator's overrides (JSON, as stored) into a tuning.

    Raises InvalidSettings, naming every value that is wrong, and changes nothing then.
    """

    def tuning(self, overrides: str) -> Tuning:
        """The tuning under these overrides."""
        ...

    def usable(self, overrides: str) -> tuple[str, str]:
        """The overrides that this release can use, and what is wrong with the others.

        The second is empty where nothing is; raises nothing.
        """
        ...

    def shown(self, overrides: str) -> Mapping[str, str]:
        """Every setting that an operator may change, by dotted name, as JSON values."""
        ...

    def merged(self, overrides: str, values: Mapping[str, str]) -> str:
        """The overrides with these values set, all or none."""
        ...
