"""Plug the runtime and the agent into vLLM."""

from pydantic import ValidationError
from torch.distributed import ProcessGroup

from eplb_service.domain.errors import InvalidSettings
from worker_agent.adapters.mover import TorchMover
from worker_agent.adapters.promises import PromiseMover
from worker_agent.adapters.runtime import Seat
from worker_agent.adapters.vllm.attachment import AttachSeat
from worker_agent.adapters.vllm.driving import drive_ascend, drive_vllm
from worker_agent.adapters.vllm.early import (
    check_early,
    require_one_balancer,
    require_one_redundancy,
    require_ownable,
)
from worker_agent.adapters.vllm.identity import Identity, VllmConfig
from worker_agent.adapters.vllm.start_map import read_start_map
from worker_agent.adapters.vllm.worker import (
    ExchangeChoice,
    Options,
    Unowned,
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

    mover = TorchMover if settings.balancer == "runtime" else PromiseMover

    def attach(seat: Seat, identity: Identity, group: ProcessGroup | None) -> StepHook:
        told = completed(agent, identity)
        return attach_seat(seat, street(told), settings=told, group=group, mover=mover)

    if settings.balancer == "runtime":
        own_layers(settings, attach)
        return
    drive = drive_vllm if settings.balancer == "vllm" else drive_ascend

    def check(config: VllmConfig) -> None:
        require_one_balancer(config, settings.balancer)
        require_one_redundancy(config, told=settings.redundant_experts)

    check_early(check)
    drive(attach)


def own_layers(settings: VllmSettings, attach: AttachSeat) -> None:
    """Have our runtime compute the MoE layers and move their experts. Raises InvalidMapFile."""
    start = None if settings.start_map is None else read_start_map(settings.start_map)
    options = options_of(settings, map_slots=None if start is None else start.num_slots)
    taken = take_factory(options)

    def check(config: VllmConfig) -> None:
        require_one_redundancy(config, told=options.num_redundant, map_slots=options.map_slots)
        require_one_balancer(config, "runtime")
        require_ownable(config, taken)

    check_early(check)
    wrap_workers(taken, attach, start)


def options_of(settings: VllmSettings, *, map_slots: int | None = None) -> Options:
    """Return the settings as the runtime's front door for vLLM takes them.

    map_slots    slots of each layer in the map that `settings.start_map` names
    """
    return Options(
        num_redundant=settings.redundant_experts,
        map_slots=map_slots,
        staging_rows=settings.staging_rows,
        memory_budget_bytes=int(settings.memory_budget_mib * MIB),
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
    is_draft = identity.role == "draft"
    update = {name: value for name, value in known.items() if name not in told}
    if is_draft:
        update["role"] = "draft"  # whatever is told of the target, which attaches beside it
    deployment = agent.deployment.model_copy(update=update)
    layers = identity.model_layers if is_draft else agent.model_layers or identity.model_layers
    return agent.model_copy(update={"deployment": deployment, "model_layers": layers})
