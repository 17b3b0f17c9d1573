"""A small model around Kimi K3's own MoE block, which vLLM cannot serve whole on a CPU.

The block is vLLM's: a latent, shared experts, SiTU, and a runner class that the model brings.
Everything else is Qwen3-MoE's. Built only where vLLM is; `register` tells vLLM of it.
"""

import copy
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

ARCHITECTURE = "TinyK3ForCausalLM"
_ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v"}
_EXPERT = {"gate_proj": ("w13", "w1"), "up_proj": ("w13", "w3"), "down_proj": ("w2", "w2")}


def register() -> None:
    """Let vLLM find the model by its architecture's name."""
    import_module("vllm").ModelRegistry.register_model(ARCHITECTURE, "tests.vllm.k3_host:built")


def __getattr__(name: str) -> Any:
    """Build the class when vLLM asks for it: its bases are vLLM's."""
    if name != "built":
        raise AttributeError(name)
    return _class()


@cache
def _class() -> type:
    qwen = import_module("vllm.model_executor.models.qwen3_moe")
    import_module("vllm.models.kimi_k3")
    block = import_module("vllm.models.kimi_k3.amd.linear").KimiMoE

    def build(self: Any, *, vllm_config: Any, prefix: str = "") -> None:
        import_module("torch").nn.Module.__init__(self)
        config = vllm_config.model_config.hf_text_config
        self.config = config
        self.model = qwen.Qwen3MoeModel(vllm_config=vllm_config, prefix=f"{prefix}model")
        own = copy.copy(config)
        own.hidden_act = "situ"
        for number, layer in enumerate(self.model.layers):
            layer.mlp = block(own, prefix=f"{prefix}model.layers.{number}.mlp", layer_idx=number)
        self.lm_head = qwen.ParallelLMHead(
            config.vocab_size, config.hidden_size, prefix=f"{prefix}lm_head"
        )
        self.logits_processor = qwen.LogitsProcessor(config.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors

    def load_weights(self: Any, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        parameters = dict(self.named_parameters())
        return {_load(parameters, name, tensor) for name, tensor in weights}

    content = {"__init__": build, "load_weights": load_weights, "__module__": __name__}
    return type("built", (qwen.Qwen3MoeForCausalLM,), content)


def _load(parameters: dict[str, Any], name: str, tensor: Tensor) -> str:
    """Load one tensor of the checkpoint, and return the parameter that it belongs to."""
    stem, _, last = name.removesuffix(".weight").rpartition(".")
    if ".mlp.experts." in name:
        block, _, expert = stem.rpartition(".")
        kind, shard = _EXPERT[last]
        target = f"{block}.routed_experts.{kind}_weight"
        parameter = parameters[target]
        parameter.weight_loader(parameter, tensor, target, shard_id=shard, expert_id=int(expert))
        return target
    if last in _ATTENTION and stem.endswith("self_attn"):
        return _stack(parameters, f"{stem}.qkv_proj.weight", tensor, _ATTENTION[last])
    if last in ("gate_proj", "up_proj"):
        return _stack(parameters, f"{stem}.gate_up_proj.weight", tensor, int(last == "up_proj"))
    parameter = parameters[name]
    default = import_module("vllm.model_executor.model_loader.weight_utils").default_weight_loader
    getattr(parameter, "weight_loader", default)(parameter, tensor)
    return name


def _stack(parameters: dict[str, Any], target: str, tensor: Tensor, shard: str | int) -> str:
    parameters[target].weight_loader(parameters[target], tensor, shard)
    return target
