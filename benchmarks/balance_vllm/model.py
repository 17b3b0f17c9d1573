"""A Qwen3-MoE whose router likes few experts, and whose experts are most of its work.

All embeddings share a direction, and each expert's router row leans towards it as far as the expert
is to be liked; so nearly every token takes experts of one rank.
"""

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.demo_vllm.models import VOCABULARY, Draw, Qwen3, Weights, drawing, write

WIDTH = 256
EXPERT_WIDTH = 512
NUM_EXPERTS = 16
TOP_K = 2
NUM_LAYERS = 2
HEADS, KV_HEADS, HEAD = 4, 2, 32
LIKED = [4, 5, 6, 7, 8, 9]
"""They lie on the first of two ranks, and none of the spare slots holds one of them at first."""
LIKING = 4.0
"""How far the best liked expert's logit is above those of experts that are not liked."""


SIZES = Qwen3(
    layers=NUM_LAYERS,
    width=WIDTH,
    expert_width=EXPERT_WIDTH,
    num_experts=NUM_EXPERTS,
    top_k=TOP_K,
    heads=HEADS,
    kv_heads=KV_HEADS,
    head=HEAD,
)


def write_skewed(folder: Path) -> Path:
    """Write its checkpoint."""
    draw = drawing(7)
    shared = torch.ones(WIDTH)
    weights: Weights = {
        "model.embed_tokens.weight": draw(VOCABULARY, WIDTH, gain=WIDTH**0.5) + shared,
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": draw(VOCABULARY, WIDTH),
    }
    for layer in range(NUM_LAYERS):
        _add_attention(weights, draw, f"model.layers.{layer}")
        _add_experts(weights, draw, f"model.layers.{layer}.mlp", shared)
    return write(folder, SIZES.config(), weights)


def _add_attention(weights: Weights, draw: Draw, prefix: str) -> None:
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{prefix}.{name}.weight"] = torch.ones(WIDTH)
    for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        weights[f"{prefix}.self_attn.{name}_proj.weight"] = draw(rows * HEAD, WIDTH)
    weights[f"{prefix}.self_attn.o_proj.weight"] = draw(WIDTH, HEADS * HEAD, gain=0.1)
    for name in ("q", "k"):
        weights[f"{prefix}.self_attn.{name}_norm.weight"] = torch.ones(HEAD)


def _add_experts(weights: Weights, draw: Draw, prefix: str, shared: Tensor) -> None:
    liking = torch.zeros(NUM_EXPERTS)
    liking[LIKED] = torch.linspace(LIKING, LIKING / 2, len(LIKED))
    # A normed token has about `WIDTH / 2 ** 0.5` of the shared direction in it.
    lean = liking[:, None] * shared / (WIDTH / 2**0.5)
    weights[f"{prefix}.gate.weight"] = draw(NUM_EXPERTS, WIDTH) + lean
    for expert in range(NUM_EXPERTS):
        stem = f"{prefix}.experts.{expert}"
        for name in ("gate", "up"):
            weights[f"{stem}.{name}_proj.weight"] = draw(EXPERT_WIDTH, WIDTH)
        weights[f"{stem}.down_proj.weight"] = draw(WIDTH, EXPERT_WIDTH, gain=0.1)
