"""The truth, from elsewhere than vLLM.

Axes    T tokens   D model width   Z latent width   E experts   K experts per token   M rows
"""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.demo_vllm.models import NUM_EXPERTS, TOP_K
from benchmarks.demo_vllm.prompts import PROMPTS
from moe_runtime.backends.codes import (
    E4M3_LARGEST,
    block_scales,
    decode_e2m1,
    decode_e8m0,
    encode_e2m1,
    encode_e4m3,
    expand_blocks,
)
from tests.vllm.checkpoints import MEANING, rows_are_quantised
from tests.vllm.words import Answer

EPS = 1e-6
TOLERANCE = 1e-4
ONE_CODE = 0.05
"""Of a block's largest output, more than one number of a row taking the next code can change."""


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


def is_alone_in_it(model: str) -> bool:
    """Whether nothing but our runtime serves a model here, so that its blocks are looked at."""
    name = Path(model).name
    return name == "k3" or rows_are_quantised(name)


def require_reference(model: str, layer: int, seen: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Every output of a block is that of the block's formula in float64.

    Where experts quantise the rows that they read, a number on the border of two codes may take
    either: few rows, and by no more than one code is worth.
    """
    name = Path(model).name
    meaning = f"{model}{MEANING}" if rows_are_quantised(name) else model
    load = import_module("safetensors.torch").load_file
    weights: dict[str, Tensor] = load(Path(meaning) / "model.safetensors")
    prefix = f"model.layers.{layer}.mlp."
    own = {n.removeprefix(prefix): t.double() for n, t in weights.items() if n.startswith(prefix)}
    assert seen
    off_M = torch.cat([_off(given, got, own, name) for given, got in seen])
    if not rows_are_quantised(name):
        assert off_M.max() < TOLERANCE, f"layer {layer}: off by {float(off_M.max())}"
        return
    assert off_M.quantile(0.95) < TOLERANCE, f"layer {layer}: {off_M.sort().values[-30:]}"
    assert off_M.max() < ONE_CODE, f"layer {layer}: off by {float(off_M.max())}"


def _off(given: Tensor, got: Tensor, own: dict[str, Tensor], name: str) -> Tensor:
    """Return [M] how far each row of an output is from the formula, of the largest number."""
    block = partial(qwen3_block, form=name) if rows_are_quantised(name) else k3_block
    want = block(given.double(), own)
    return (got.double() - want).abs().amax(dim=1) / want.abs().max()


def qwen3_block(x_TD: Tensor, weights: dict[str, Tensor], form: str) -> Tensor:
    """Qwen3's MoE block with experts that quantise the rows they read."""
    read = READ[form]
    logits_TE = x_TD @ weights["gate.weight"].t()
    share_TK, chosen_TK = torch.softmax(logits_TE, dim=1).topk(TOP_K, dim=1)
    share_TK = share_TK / share_TK.sum(1, keepdim=True)
    share_TE = torch.zeros_like(logits_TE).scatter(1, chosen_TK, share_TK)
    y_TD = torch.zeros_like(x_TD)
    for expert in range(NUM_EXPERTS):
        gate, up, down = (
            weights[f"experts.{expert}.{part}_proj.weight"].t() for part in ("gate", "up", "down")
        )
        rows = read(x_TD)
        inner = torch.nn.functional.silu(rows @ gate) * (rows @ up)
        y_TD += share_TE[:, expert : expert + 1] * (read(inner) @ down)
    return y_TD


def _int8_by_token(x: Tensor) -> Tensor:
    scale = x.abs().amax(dim=1, keepdim=True) / 127
    return torch.round(x / scale) * scale


def _float8_by_token(x: Tensor) -> Tensor:
    scale = x.abs().amax(dim=1, keepdim=True) / E4M3_LARGEST
    return encode_e4m3(x / scale).double() * scale


def _float8_by_block(x: Tensor) -> Tensor:
    scale = _scale_of_blocks(x, largest_exponent=8)
    return encode_e4m3(x / scale).double() * scale


def _float4_by_block(x: Tensor) -> Tensor:
    scale = _scale_of_blocks(x, largest_exponent=2)
    return decode_e2m1(encode_e2m1(x / scale), torch.float64) * scale


def _scale_of_blocks(x: Tensor, *, largest_exponent: int) -> Tensor:
    scales = block_scales(x, largest_exponent=largest_exponent)
    return expand_blocks(decode_e8m0(scales, torch.float64), x.shape[1])


READ = {
    "w8a8": _int8_by_token,
    "w8a8-fp8": _float8_by_token,
    "w8a8-mxfp8": _float8_by_block,
    "w4a8-mxfp": _float8_by_block,
    "w4a4-mxfp4": _float4_by_block,
}
"""What experts make of the rows that they read, as numbers."""


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
