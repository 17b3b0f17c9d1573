"""Which deployment a rank of vLLM belongs to, read from its configuration."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, Protocol

Role = Literal["serve", "prefill", "decode", "draft"]
ROLES: dict[str | None, Role] = {"kv_producer": "prefill", "kv_consumer": "decode"}


class ModelConfig(Protocol):
    """vLLM's ModelConfig."""

    model: str
    is_moe: bool
    dtype: object
    served_model_name: str | list[str] | None

    def get_num_experts(self) -> int:
        """Return E of one layer."""
        ...


class EplbConfig(Protocol):
    """vLLM's EPLBConfig."""

    num_redundant_experts: int


class ParallelConfig(Protocol):
    """vLLM's ParallelConfig."""

    distributed_executor_backend: object
    data_parallel_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    enable_eplb: bool
    eplb_config: EplbConfig
    rank: int


class TransferConfig(Protocol):
    """vLLM's KVTransferConfig."""

    kv_role: str | None


class CompilationConfig(Protocol):
    """vLLM's CompilationConfig."""

    static_forward_context: dict[str, object]
    """Layers of the built model, by name."""
    static_all_moe_layers: list[str]


class VllmConfig(Protocol):
    """vLLM's VllmConfig."""

    model_config: ModelConfig
    parallel_config: ParallelConfig
    kv_transfer_config: TransferConfig | None
    compilation_config: CompilationConfig
    additional_config: object
    """What a platform reads for itself."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells this rank's deployment from others, as far as vLLM knows."""

    model: str
    role: Role
    stage: int
    """Pipeline stage: each has layers, and so a deployment, of its own."""
    weight_format: str
    model_layers: tuple[int, ...] = ()
    """The model's own number of each MoE layer; empty where it is not known."""


def identity_of(config: VllmConfig) -> Identity:
    """Return the identity of the target model's ranks."""
    model, parallel = config.model_config, config.parallel_config
    served = model.served_model_name
    name = served[0] if isinstance(served, list) else served or model.model
    transfer = config.kv_transfer_config
    tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    return Identity(
        model=PurePath(name).name,
        role=ROLES.get(transfer.kv_role if transfer else None, "serve"),
        stage=parallel.rank // tensor % stages,
        weight_format=str(model.dtype).removeprefix("torch."),
    )
