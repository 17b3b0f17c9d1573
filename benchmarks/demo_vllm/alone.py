"""One process of vLLM: what it answers alone, or what it answers when its map is wrong.

python -m benchmarks.demo_vllm.alone MODEL ANSWERS [roll]
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from benchmarks.demo_vllm.prompts import NUM_TOKENS, PROMPTS


def answers(model: str, *, rolled: bool) -> list[list[int]]:
    """Return the greedy continuation of every prompt.

    rolled    ask once with every slot taken for the expert after its own, through the plugin
    """
    vllm = import_module("vllm")
    llm = vllm.LLM(
        model=model,
        enforce_eager=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=64 << 20,
        skip_tokenizer_init=True,
    )
    if rolled:
        llm.collective_rpc(_roll)
    params = vllm.SamplingParams(
        temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": list(text.encode())} for text in PROMPTS]
    found = llm.generate(prompts, params, use_tqdm=False)
    return [[int(token) for token in one.outputs[0].token_ids] for one in found]


def _roll(worker: Any) -> None:  # noqa: ANN401  a wrapper of vLLM's around the worker
    stack = worker.eplb.owned.stack
    for layer in range(stack.facts.num_layers):
        table = stack.live_table(layer)
        table.copy_(table.roll(1, 0))
    held = cast("dict[str, Any]", vars(stack.slots))
    held["_held_LS"][:] = (held["_held_LS"] + 1) % stack.facts.num_experts


def main() -> int:
    """Write the answers to a file."""
    model, target, *rest = sys.argv[1:]
    Path(target).write_text(json.dumps(answers(model, rolled="roll" in rest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
