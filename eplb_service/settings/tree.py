"""Every setting of the service: one tree, frozen, with unit and default in one place.

Sections that mirror a room's own terms (gates, budget, window) are converted by whoever
plugs the rooms together; nothing below reads this tree.
"""

from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from eplb_service.domain.errors import UnknownPolicy
from eplb_service.domain.report import Phase
from eplb_service.gates.settings import GateSettings as GateThresholds
from eplb_service.policies.catalog import policy_named
from eplb_service.policies.shares import LOCALITY_PRICE

Port = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(gt=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]


def _known_policy(name: str) -> str:
    try:
        return policy_named(name).name
    except UnknownPolicy as unknown:
        raise ValueError(str(unknown)) from unknown


class ServerSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Where ranks, operators and Prometheus find the controller."""

    host: Name = "127.0.0.1"
    """Address that gRPC is bound to."""
    port: Port = 50051
    """0 takes any free port."""
    metrics_host: Name = "127.0.0.1"
    """Address that /metrics is bound to."""
    metrics_port: Port = 9464
    """0 takes any free port."""
    page: bool | None = None
    """Whether the page for people is served, at / beside /metrics; it is read only. null: only
    where metrics_host is this machine alone."""
    reflection: bool | None = None
    """Whether gRPC lists its services to whoever connects; null: only where host is this machine
    alone."""
    finish_s: NonNegativeFloat = 10.0
    """Seconds that a controller which is told to end gives waves to finish; then it withdraws
    them, and leaves those that may have been cut over to whoever leads next."""
    expert_metrics: bool = False
    """Whether /metrics/experts tells the heat of every expert: layers times experts series."""


class SecuritySettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Who may reach the controller. Files are read again when they change; empty: there is none."""

    certificate: str = ""
    """PEM file: the controller's certificate and those between it and its authority."""
    key: str = ""
    """PEM file: the key of the certificate, without a password."""
    client_ca: str = ""
    """PEM file: authorities of callers' certificates; every caller must then show one."""
    tokens: str = ""
    """File of bearer tokens: a caller's eplb:// name, a blank, its token, one a line."""
    insecure: bool = False
    """Whether addresses beyond this machine may be served without TLS or without asking who
    calls; for a network that keeps strangers out by itself."""

    @model_validator(mode="after")
    def _certificate_has_key(self) -> Self:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key need each other; one of them is not set")
        if self.client_ca and not self.certificate:
            raise ValueError("client_ca needs certificate and key; they are not set")
        return self


class StoreSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Where the controller remembers."""

    url: Name = "sqlite:eplb.db"
    """sqlite:///absolute/path, sqlite:relative/path, redis://host:port/0 (rediss: with TLS; needed
    where more than one Ray node may run the controller) or memory: (forgets when it ends)."""
    deadline_s: PositiveFloat = 5.0
    """Seconds after which a call to the store is given up, with nothing written."""


class LeadingSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How a leader is told alive, and who takes over."""

    is_standby: bool = False
    """Whether to wait until no other controller leads, or take over at once."""
    beat_s: PositiveFloat = 1.0
    """Seconds between two beats of the leader in the store."""
    takeover_s: PositiveFloat = 3.0
    """Seconds without a beat after which one that stands by takes over."""

    @model_validator(mode="after")
    def _beats_may_be_late(self) -> Self:
        if self.takeover_s < 2 * self.beat_s:
            raise ValueError(
                f"takeover_s is {self.takeover_s:g}, less than two beats of {self.beat_s:g} s: "
                "one late beat would depose a leader that lives"
            )
        return self


class DirectoryEntry(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Which controller some deployments belong to."""

    deployments: Name
    """Pattern of names (model/instance/role/stage/group), with * and ?."""
    endpoint: Name
    """host:port of their controller, with its standbys after commas."""


class DirectorySettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which deployments belong to which of several controllers; each has a store of its own."""

    mine: str = ""
    """This controller's endpoint, as entries have it; needed where there are entries."""
    entries: tuple[DirectoryEntry, ...] = ()
    """The same for all controllers; the first that fits a name decides, and a deployment that fits
    none is served wherever it comes."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.entries and self.mine not in {entry.endpoint for entry in self.entries}:
            raise ValueError(f"mine is {self.mine!r}, which is the endpoint of no entry")
        return self


class PlanningSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """When and how plans are drawn."""

    is_automatic: bool = True
    """Whether plans are drawn without being asked for; operators can always ask."""
    policy: Annotated[Name, AfterValidator(_known_policy)] = "incremental"
    """Policy of plans that name none."""
    interval_s: PositiveFloat = 30.0
    """Seconds between two automatic plans of a deployment."""
    deadline_s: PositiveFloat = 20.0
    """Seconds after which the planner is killed."""
    phase: Phase | None = None
    """Balance for prefill or decode steps alone; null: for both together."""
    distances: tuple[tuple[NonNegativeFloat, ...], ...] | None = None
    """[N][N] price of the way from each rank to each other, for near sources; null: by node."""
    rank_speeds: tuple[PositiveFloat, ...] | None = None
    """[N] tokens per second of each rank of a deployment, in any unit, where ranks differ; null:
    all alike. Looked at in deployments of as many ranks."""
    expert_cost: NonNegativeFloat = 0.0
    """What an expert with tokens costs its rank beside them in a step, in tokens: reading its
    weights, where that is what a step waits for."""


class ShareSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """When a token's replica is chosen anew without any weight being moved.

    Operators may change these while the service runs.
    """

    is_automatic: bool = True
    """Whether shares are drawn; otherwise every placement keeps its even ones."""
    interval_s: PositiveFloat = 5.0
    """Seconds between two looks whether other shares would balance better."""
    deadline_s: PositiveFloat = 30.0
    """Seconds, idle time not counted, in which all ranks must use a revision."""
    min_gain: NonNegativeFloat = 0.01
    """Drop of a layer's imbalance, beyond what noise feigns, from which it gets other rows."""
    locality_price: NonNegativeFloat = LOCALITY_PRICE
    """Tokens of imbalance that are given to keep one token on its node, or on its rank."""


class BudgetSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How much one plan may move. Operators may change these while the service runs."""

    max_moves: PositiveInt = 512
    """Slots that get another expert, per plan."""
    max_bytes: PositiveInt = 64 * 2**30
    """Bytes that ranks send each other, per plan."""
    round_bytes: PositiveInt = 256 * 2**20
    """Bytes that one rank sends or receives per transfer round, besides at least one expert."""
    max_slowdown: PositiveFloat = 0.1
    """Share by which moving may lengthen a step, as measured in waves so far: rounds get fewer
    bytes where it would, down to an eighth of round_bytes."""
    max_moves_per_layer: PositiveInt | None = None
    """Slots of one layer that get another expert, per plan; null: any."""
    max_moves_per_rank: PositiveInt | None = None
    """Slots of one rank that get another expert, per plan; null: any."""


_GATES = GateThresholds()


class GateSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """When a plan is due and when it is worth its price; defaults are the gates' own.

    Operators may change these while the service runs.
    """

    trigger_imbalance: AtLeastOne = _GATES.trigger_imbalance
    """Measured imbalance, mean over layers with data, above which a plan is due."""
    trigger_worst_layer: AtLeastOne = _GATES.trigger_worst_layer
    """Measured imbalance of a single layer above which a plan is due whatever the mean."""
    min_gain: Annotated[float, Field(ge=0, lt=1)] = _GATES.min_gain
    """Least drop of the mean imbalance that a plan must promise, as a share of it."""
    min_steps: NonNegativeInt = _GATES.min_steps
    """Steps that a window must enclose."""
    min_tokens_per_expert: NonNegativeFloat = _GATES.min_tokens_per_expert
    """Mean tokens per expert, over layers with data, that a window must hold."""
    min_coverage: Share = _GATES.min_coverage
    """Share of ranks that must have reported, above 0 and up to 1."""
    cooldown_s: NonNegativeFloat = _GATES.cooldown_s
    """Seconds from the end of one plan to the start of the next automatic one."""
    hold_back_s: NonNegativeFloat = _GATES.hold_back_s
    """Seconds for which automatic plans leave a layer alone that they have put back; doubles."""
    worse_margin: NonNegativeFloat = _GATES.worse_margin
    """Share by which imbalance or step time must grow for a plan to be rolled back as worse."""
    max_payback_steps: PositiveFloat = _GATES.max_payback_steps
    """Steps within which a plan must win back the time that it costs."""


class WindowSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How ranks report load, and how much of it a plan looks at."""

    report_every_steps: PositiveInt = 10
    """Steps between two reports of a rank."""
    sent_every_reports: PositiveInt = 10
    """Reports between two that tell sent counts too."""
    interval_steps: PositiveInt = 50
    """Steps of one interval; a multiple of report_every_steps."""
    num_intervals: PositiveInt = 6
    """Intervals in a window."""

    @model_validator(mode="after")
    def _intervals_hold_whole_reports(self) -> Self:
        if self.interval_steps % self.report_every_steps:
            raise ValueError(
                f"interval_steps must be a multiple of report_every_steps, "
                f"{self.report_every_steps}, but is {self.interval_steps}"
            )
        return self


class ProtocolSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Patience during a migration."""

    agree_every: PositiveInt = 4
    """Steps between two agreements; the ranks' own setting, and the same there."""
    nudge_interval_s: PositiveFloat = 1.0
    """Seconds without an answer after which a word is said again."""
    wave_deadline_s: PositiveFloat = 120.0
    """Seconds, idle time not counted, in which a wave must be staged everywhere."""
    expiry_steps: NonNegativeInt = 200
    """Steps from spending an epoch to its expiry, besides one agreement per transfer round."""


class RegistrationSettings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What ranks must bring to be taken in."""

    num_redundant: NonNegativeInt | None = None
    """Slots per layer beyond one for every expert; null: whatever the engine was started with."""
