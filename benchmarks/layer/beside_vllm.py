# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
# Off in this file only: vLLM is not installed where the code is checked.
"""One layer beside vLLM's CPU fused MoE, in an environment that has vLLM.

    python -m benchmarks.layer.beside_vllm

Prints, as JSON, the seconds of each. vLLM's kernel knows SwiGLU but not Kimi K3's activation, no
latent, and widths that 32 divides: so both compute that. Both route, too. One thread, in turn.
"""

import json

import torch
from torch import Tensor

from benchmarks.layer.measure import LAYER_ROUNDS, NUM_TOKENS, TOP_K, in_turn, runtime_of
from moe_runtime.layer.parts import rms_norm
from moe_runtime.runtime import (
    Batch,
    ByGate,
    MoeRuntime,
    Phase,
    Scoring,
    SelectorSettings,
    StackShape,
    Step,
    StepKind,
    SwiGLU,
)

__all__ = ["main"]

_SHAPE = StackShape(
    num_layers=1,
    width=256,
    intermediate=224,
    selector=SelectorSettings(num_experts=224, top_k=TOP_K, scoring=Scoring.SIGMOID, factor=2.5),
    activation=SwiGLU(),
)


class _Fused:
    """The same layer by vLLM's kernel."""

    def __init__(self, runtime: MoeRuntime) -> None:
        from vllm import _custom_ops as operators  # noqa: PLC0415  only its environment has it

        self._operators = operators
        self._gate_XD = runtime.model.layer(0, torch.float32).gate_XD
        stacks = runtime.slots.weights(0).named()
        self._w13, self._w2 = (
            operators.cpu_prepack_moe_weight(stacks[name].contiguous(), "vec")
            for name in ("w13", "w2")
        )

    def __call__(self, x_TD: Tensor) -> Tensor:
        """Return [T, D]."""
        normed_TD = rms_norm(x_TD)
        best = torch.sigmoid(normed_TD @ self._gate_XD.t()).topk(TOP_K, dim=1)
        weights_TK = best.values / best.values.sum(dim=1, keepdim=True) * 2.5
        y_TD = torch.empty_like(normed_TD)
        self._operators.cpu_fused_moe(
            y_TD,
            normed_TD,
            self._w13,
            self._w2,
            None,
            None,
            weights_TK,
            best.indices.to(torch.int32),
            "silu",
            "vec",
        )
        return x_TD + y_TD


def main() -> None:
    """Measure and print; raises RuntimeError if the outputs differ."""
    torch.set_num_threads(1)
    runtime = runtime_of(_SHAPE)
    x_TD = torch.randn((NUM_TOKENS, _SHAPE.width), generator=torch.Generator().manual_seed(0))
    given = Batch.of(x_TD, ByGate(), Step(StepKind.REAL, Phase.DECODE))
    fused = _Fused(runtime)
    ours, theirs = runtime.forward(given), fused(x_TD)
    off, size = float((ours - theirs).abs().amax()), float(ours.abs().amax())
    if not off < 1e-4 * size:
        raise RuntimeError(f"the layers differ by {off}, of {size}; nothing was measured")
    layer_s, fused_s = in_turn(
        lambda: runtime.forward(given), lambda: fused(x_TD), rounds=LAYER_ROUNDS
    )
    print(json.dumps({"layer_s": layer_s, "fused_s": fused_s}))


if __name__ == "__main__":
    main()
