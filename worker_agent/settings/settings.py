"""What one agent can be told, by environment variables EPLB_AGENT_*.

Nested settings are named with two underscores: EPLB_AGENT_DEPLOYMENT__MODEL.
"""

import os
import platform
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from eplb_service.domain.deployment import DeploymentIdentity
from eplb_service.domain.variables import DELIMITER, misspelt

PREFIX = "EPLB_AGENT_"

Word = Annotated[str, Field(min_length=1)]


class DeploymentSettings(BaseModel, frozen=True, extra="forbid"):
    """Which deployment the rank belongs to; the same on all its ranks."""

    model: Word = "default"
    instance: str = "0"
    role: Literal["serve", "prefill", "decode", "draft"] = "serve"
    stage: NonNegativeInt = 0
    group: str = "0"
    weight_format: Word = "float32"

    def identity(self) -> DeploymentIdentity:
        """Return it as the domain says it."""
        return DeploymentIdentity(
            model=self.model,
            instance=self.instance,
            role=self.role,
            stage=self.stage,
            group=self.group,
            weight_format=self.weight_format,
        )


class PaceSettings(BaseModel, frozen=True, extra="forbid"):
    """Waits of the agent's thread, in seconds."""

    poll_s: PositiveFloat = 0.25
    idle_after_s: PositiveFloat = 5.0
    """Without a step for so long the group is told to be idle."""
    welcome_within_s: PositiveFloat = 10.0
    """A stream on which no Welcome came is given up."""
    first_backoff_s: PositiveFloat = 0.2
    max_backoff_s: PositiveFloat = 10.0
    keepalive_s: Annotated[float, Field(ge=1)] = 30.0
    """Between two pings of a silent connection; the server refuses more frequent ones."""
    keepalive_timeout_s: PositiveFloat = 10.0

    @model_validator(mode="after")
    def _backoff_can_grow(self) -> Self:
        if self.first_backoff_s > self.max_backoff_s:
            raise ValueError(
                f"first_backoff_s is {self.first_backoff_s:g}, more than max_backoff_s, "
                f"{self.max_backoff_s:g}"
            )
        return self


class TlsSettings(BaseModel, frozen=True, extra="forbid"):
    """How the agent and the controller know each other; files are read at every connection."""

    ca: str = ""
    """PEM file: authorities of the controller's certificate; with it TLS is on."""
    certificate: str = ""
    """PEM file: this rank's certificate, which names eplb://agent/DEPLOYMENT/RANK."""
    key: str = ""
    """PEM file: its key, without a password."""
    server_name: str = ""
    """Name that the controller's certificate must hold; empty: the endpoint's host."""

    @model_validator(mode="after")
    def _files_come_together(self) -> Self:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key need each other; one of them is not set")
        if (self.certificate or self.server_name) and not self.ca:
            raise ValueError("certificate and server_name need ca, which is not set")
        return self


class AgentSettings(BaseSettings):
    """All settings of one agent."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=DELIMITER, frozen=True, extra="forbid"
    )

    endpoint: Word
    """host:port of the controller; several with commas between them where others stand by."""
    tls: TlsSettings = TlsSettings()
    token_file: str = ""
    """File that holds this rank's bearer token and nothing else; read at every connection."""
    insecure: bool = False
    """Whether a controller on another machine may be spoken to without TLS."""
    deployment: DeploymentSettings = DeploymentSettings()
    pace: PaceSettings = PaceSettings()
    device: Annotated[str, Field(pattern=r"^(|cpu|npu:[0-9]+)$")] = ""
    """What the rank's engine computes on, cpu or npu:NUMBER: what `open_device` is given; an agent
    does not attach to an engine on another one. Empty: whatever the engine is on."""
    node: Word = Field(default_factory=lambda: platform.node() or "unknown")
    supernode: str = ""
    """Group of hosts with a fast interconnect."""
    model_layers: tuple[NonNegativeInt, ...] = ()
    """The model's own number of each MoE layer; empty: 0, 1, 2 and so on."""
    agree_every: PositiveInt = 4
    """Steps from one agreement to the next; the same on all ranks, and known to the controller."""
    on_corruption: Literal["fail", "serve"] = "fail"
    """What the group does where an expert's only slot does not hold it any more: end, so that it
    restarts with good weights, or serve on; the same on all ranks."""
    wait_for_welcome_s: NonNegativeFloat = 2.0
    """How long a start waits to be told a placement; without one the initial one is served."""
    group_timeout_s: PositiveFloat = 600.0
    """A peer that is later than this to an agreement or a transfer has died."""
    close_within_s: PositiveFloat = 5.0
    report_every_steps: PositiveInt = 10
    """Until a Welcome says otherwise."""
    sent_every_reports: PositiveInt = 10
    """Until a Welcome says otherwise."""

    @model_validator(mode="before")
    @classmethod
    def _variables_are_known(cls, given: object) -> object:
        """Refuse a misspelt variable: the environment's are otherwise passed over in silence."""
        if unknown := misspelt(os.environ, own=PREFIX):
            raise ValueError("; ".join(unknown))
        return given
