"""The truth, from elsewhere than vLLM.

Axes    T tokens   D model width   Z latent width   E experts   K experts per token
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.demo_vllm.models import NUM_EXPERTS, TOP_K
from benchmarks.demo_vllm.prompts import PROMPTS
from tests.vllm.words import Answer

EPS = 1e-6
TOLERANCE = 1e-4


def by_transformers(model: str, answers: Sequence[Answer]) -> list[Answer]:
    """Return transformers' own best token at every place of the given answers."""
    auto = import_module("transformers").AutoModelForCausalLM
    reference = auto.from_pretrained(model, dtype=torch.float32).eval()
    found: list[Answer] = []
    for text, answer in zip(PROMPTS, answers, strict=True):
        prompt = list(text.encode())
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer.tokens])).logits[0]
        rows = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), dim=1)
        best = rows.max(dim=1)
        found.append(Answer([int(n) for n in best.indices], [float(n) for n in best.values], []))
    return found


def require_reference(model: str, layer: int, seen: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Every output of Kimi K3's block is that of the block's formula in float64."""
    load = import_module("safetensors.torch").load_file
    weights: dict[str, Tensor] = load(Path(model) / "model.safetensors")
    prefix = f"model.layers.{layer}.mlp."
    own = {n.removeprefix(prefix): t.double() for n, t in weights.items() if n.startswith(prefix)}
    assert seen
    for given, got in seen:
        want = k3_block(given.double(), own)
        off = (got.double() - want).abs().max() / want.abs().max()
        assert off < TOLERANCE, f"layer {layer}: off by {float(off)}"


def k3_block(x_TD: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Kimi K3's MoE block: a latent with a norm, SiTU, shared experts, sigmoid scores."""
    scores_TE = torch.sigmoid(x_TD @ weights["gate.weight"].t())
    judged_TE = scores_TE + weights["gate.e_score_correction_bias"]
    chosen_TK = judged_TE.topk(TOP_K, dim=1).indices
    share_TK = scores_TE.gather(1, chosen_TK)
    share_TE = torch.zeros_like(scores_TE).scatter(
        1, chosen_TK, share_TK / share_TK.sum(1, keepdim=True)
    )
    x_TZ = x_TD @ weights["routed_expert_down_proj.weight"].t()
    y_TZ = torch.zeros_like(x_TZ)
    for expert in range(NUM_EXPERTS):
        y_TZ += share_TE[:, expert : expert + 1] * gated(x_TZ, weights, f"experts.{expert}")
    y_TZ = y_TZ * torch.rsqrt(y_TZ.square().mean(1, keepdim=True) + EPS)
    y_TD = (y_TZ * weights["routed_expert_norm.weight"]) @ weights[
        "routed_expert_up_proj.weight"
    ].t()
    return y_TD + gated(x_TD, weights, "shared_experts")


def gated(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """One expert with SiTU at K3's constants."""
    gate, up, down = (weights[f"{name}.{part}_proj.weight"].t() for part in ("gate", "up", "down"))
    bounded = 4.0 * torch.tanh(x @ gate / 4.0) * torch.sigmoid(x @ gate)
    return (bounded * 25.0 * torch.tanh(x @ up / 25.0)) @ down
