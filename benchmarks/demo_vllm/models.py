"""Tiny models with real seeded weights, as checkpoints that vLLM and transformers read.

Dummy weights would not do: they are the same for every rank's slots, so that an expert in a
wrong place would go unseen. Sizes are such that a greedy text depends on every expert.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 288
BYTES = 256
WIDTH = 128
NUM_EXPERTS = 8
TOP_K = 2
EXPERT_WIDTH = 64
Weights = dict[str, Tensor]
Draw = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3:
    """Sizes of a Qwen3-MoE, every layer of which has experts."""

    layers: int = 3
    width: int = WIDTH
    expert_width: int = EXPERT_WIDTH
    num_experts: int = NUM_EXPERTS
    top_k: int = TOP_K
    heads: int = 4
    kv_heads: int = 2
    head: int = 32

    def config(self) -> dict[str, object]:
        """Return what its config.json says."""
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "hidden_size": self.width,
            "intermediate_size": 2 * self.width,
            "moe_intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "attention_bias": False,
        }


QWEN3 = Qwen3()


def write_qwen3(folder: Path) -> Path:
    """Three layers of Qwen3-MoE."""
    return write(folder, QWEN3.config(), qwen3_weights())


def qwen3_weights() -> Weights:
    """Return its weights."""
    draw, weights = drawing(0), dict[str, Tensor]()
    embed(weights, draw)
    for layer in range(QWEN3.layers):
        prefix = f"model.layers.{layer}"
        norms(weights, prefix)
        heads = {"heads": QWEN3.heads, "kv_heads": QWEN3.kv_heads, "head": QWEN3.head}
        attention(weights, draw, prefix, **heads)
        weights[f"{prefix}.mlp.gate.weight"] = draw(NUM_EXPERTS, WIDTH, gain=2.0)
        experts(weights, draw, f"{prefix}.mlp.experts", width=WIDTH)
    return weights


DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": WIDTH,
    "intermediate_size": 256,
    "moe_intermediate_size": EXPERT_WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": NUM_EXPERTS,
    "num_experts_per_tok": TOP_K,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
}


def write_deepseek(folder: Path) -> Path:
    """One dense layer and two with experts, as DeepSeek-V3 and Kimi K2 have them."""
    layers, heads, q_rank, kv_rank, rope, nope, value = 3, 4, 64, 512, 64, 128, 128
    draw, weights = drawing(1), dict[str, Tensor]()
    embed(weights, draw)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        norms(weights, prefix)
        mla = f"{prefix}.self_attn"
        weights[f"{mla}.q_a_proj.weight"] = draw(q_rank, WIDTH)
        weights[f"{mla}.q_a_layernorm.weight"] = torch.ones(q_rank)
        weights[f"{mla}.q_b_proj.weight"] = draw(heads * (nope + rope), q_rank)
        weights[f"{mla}.kv_a_proj_with_mqa.weight"] = draw(kv_rank + rope, WIDTH)
        weights[f"{mla}.kv_a_layernorm.weight"] = torch.ones(kv_rank)
        weights[f"{mla}.kv_b_proj.weight"] = draw(heads * (nope + value), kv_rank)
        weights[f"{mla}.o_proj.weight"] = draw(WIDTH, heads * value)
        if layer == 0:
            dense(weights, draw, f"{prefix}.mlp", width=256)
            continue
        weights[f"{prefix}.mlp.gate.weight"] = draw(NUM_EXPERTS, WIDTH, gain=2.0)
        weights[f"{prefix}.mlp.gate.e_score_correction_bias"] = draw(NUM_EXPERTS, 1, gain=0.1)[:, 0]
        experts(weights, draw, f"{prefix}.mlp.experts", width=WIDTH)
        dense(weights, draw, f"{prefix}.mlp.shared_experts", width=EXPERT_WIDTH)
    return write(folder, DEEPSEEK, weights)


K3 = {
    **QWEN3.config(),
    "architectures": ["TinyK3ForCausalLM"],
    "mlp_only_layers": list(range(3)),
    "num_experts_per_token": TOP_K,
    "num_shared_experts": 2,
    "routed_expert_hidden_size": 64,
    "latent_moe_use_norm": True,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "routed_scaling_factor": 1.0,
    "use_grouped_topk": True,
    "num_expert_group": 1,
    "topk_group": 1,
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "min_moe_intermediate_per_partition": 1,
}


def write_k3(folder: Path) -> Path:
    """Kimi K3's MoE block in three layers around Qwen3's attention, for `tests.vllm.k3_host`."""
    layers, heads, kv_heads, head, latent = 3, 4, 2, 32, 64
    draw, weights = drawing(2), dict[str, Tensor]()
    embed(weights, draw)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        norms(weights, prefix)
        attention(weights, draw, prefix, heads=heads, kv_heads=kv_heads, head=head)
        mlp = f"{prefix}.mlp"
        weights[f"{mlp}.gate.weight"] = draw(NUM_EXPERTS, WIDTH, gain=2.0)
        weights[f"{mlp}.gate.e_score_correction_bias"] = draw(NUM_EXPERTS, 1, gain=0.1)[:, 0]
        weights[f"{mlp}.routed_expert_down_proj.weight"] = draw(latent, WIDTH)
        weights[f"{mlp}.routed_expert_norm.weight"] = torch.ones(latent)
        weights[f"{mlp}.routed_expert_up_proj.weight"] = draw(WIDTH, latent, gain=2.0)
        experts(weights, draw, f"{mlp}.experts", width=latent)
        dense(weights, draw, f"{mlp}.shared_experts", width=2 * EXPERT_WIDTH)
    return write(folder, K3, weights)


def drawing(seed: int) -> Draw:
    """Return a function that draws matrices which turn inputs of size one into size `gain`."""
    source = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int, *, gain: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=source) * (gain / columns**0.5)

    return draw


def embed(weights: Weights, draw: Draw) -> None:
    """Embeddings, the last norm and the head."""
    weights["model.embed_tokens.weight"] = draw(VOCABULARY, WIDTH, gain=WIDTH**0.5)
    weights["model.norm.weight"] = torch.ones(WIDTH)
    weights["lm_head.weight"] = draw(VOCABULARY, WIDTH, gain=2.0)


def norms(weights: Weights, prefix: str) -> None:
    """The two norms of a layer."""
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{prefix}.{name}.weight"] = torch.ones(WIDTH)


def attention(
    weights: Weights, draw: Draw, prefix: str, *, heads: int, kv_heads: int, head: int
) -> None:
    """Qwen3's attention."""
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        weights[f"{prefix}.self_attn.{name}_proj.weight"] = draw(rows * head, WIDTH)
    weights[f"{prefix}.self_attn.o_proj.weight"] = draw(WIDTH, heads * head)
    for name in ("q", "k"):
        weights[f"{prefix}.self_attn.{name}_norm.weight"] = torch.ones(head)


def experts(weights: Weights, draw: Draw, prefix: str, *, width: int) -> None:
    """All experts of a layer, each drawn by itself and several units strong."""
    for expert in range(NUM_EXPERTS):
        for name in ("gate", "up"):
            weights[f"{prefix}.{expert}.{name}_proj.weight"] = draw(EXPERT_WIDTH, width, gain=2.0)
        weights[f"{prefix}.{expert}.down_proj.weight"] = draw(width, EXPERT_WIDTH, gain=4.0)


def dense(weights: Weights, draw: Draw, prefix: str, *, width: int) -> None:
    """A dense part, or a shared expert."""
    for name in ("gate", "up"):
        weights[f"{prefix}.{name}_proj.weight"] = draw(width, WIDTH)
    weights[f"{prefix}.down_proj.weight"] = draw(WIDTH, width)


def write(folder: Path, config: Mapping[str, object], weights: Weights) -> Path:
    """Write the files of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    everywhere: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": BYTES,
        "eos_token_id": BYTES + 1,
    }
    (folder / "config.json").write_text(json.dumps({**everywhere, **config}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512})
    )
    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    import_module("safetensors.torch").save_file(
        contiguous, folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder


def tokenizer() -> dict[str, object]:
    """One token for each byte, in the letters that byte-level tokenizers write bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, BYTES)]
    letters = {byte: chr(byte) for byte in plain}
    for byte in range(BYTES):
        letters.setdefault(byte, chr(BYTES + len(letters) - len(plain)))
    vocabulary = {letters[byte]: byte for byte in range(BYTES)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
