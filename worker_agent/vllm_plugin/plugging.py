"""Plug the runtime and the agent into vLLM."""

from pydantic import ValidationError
from torch.distributed import ProcessGroup

from eplb_service.domain.errors import InvalidSettings
from worker_agent.adapters.runtime import Seat
from worker_agent.adapters.vllm.identity import Identity
from worker_agent.adapters.vllm.worker import (
    ExchangeChoice,
    Options,
    Unowned,
    check_models_early,
    take_factory,
    wrap_workers,
)
from worker_agent.agent.hook import StepHook
from worker_agent.main import attach_seat, street
from worker_agent.settings.settings import AgentSettings
from worker_agent.settings.vllm import VllmSettings

MIB = 1 << 20


def plug_in() -> None:
    """Read the settings and replace vLLM's factory; nothing if they do not enable it."""
    try:
        settings = VllmSettings()
        if not settings.enabled:
            return
        agent = AgentSettings()  # pyright: ignore[reportCallIssue]  the environment names the endpoint
    except ValidationError as wrong:
        raise InvalidSettings(f"{wrong}; vLLM does not start with the plugin enabled") from wrong

    def attach(seat: Seat, identity: Identity, group: ProcessGroup | None) -> StepHook:
        told = completed(agent, identity)
        return attach_seat(seat, street(told), settings=told, group=group)

    taken = take_factory(options_of(settings))
    check_models_early(taken)
    wrap_workers(taken, attach)


def options_of(settings: VllmSettings) -> Options:
    """Return the settings as the runtime's front door for vLLM takes them."""
    return Options(
        num_redundant=settings.redundant_experts,
        staging_rows=settings.staging_rows,
        staging_budget_bytes=int(settings.staging_budget_mib * MIB),
        exchange=ExchangeChoice(settings.exchange),
        unowned=Unowned(settings.unowned),
    )


def completed(agent: AgentSettings, identity: Identity) -> AgentSettings:
    """Return the settings with what vLLM knows of the deployment, where they do not say it."""
    told = agent.deployment.model_fields_set
    known: dict[str, str | int] = {
        "model": identity.model,
        "role": identity.role,
        "stage": identity.stage,
        "weight_format": identity.weight_format,
    }
    update = {name: value for name, value in known.items() if name not in told}
    deployment = agent.deployment.model_copy(update=update)
    return agent.model_copy(update={"deployment": deployment})
