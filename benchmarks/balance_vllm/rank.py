# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""One of two tensor-parallel ranks of vLLM: python -m benchmarks.balance_vllm.rank.

Reads commands from its standard input, one JSON object a line, and answers each on the descriptor
that it was given. Its engine and worker are in this process.
"""

import json
import os
import sys
import time
import traceback
from importlib import import_module
from typing import Any

import torch

from benchmarks.balance_vllm.lift import add_balancer, balancer_options, lift
from benchmarks.balance_vllm.memory import name_memory_apart
from benchmarks.demo_vllm.models import BYTES

NUM_REDUNDANT = 4
PROMPTS, PROMPT_TOKENS = 8, 240
ANSWER_TOKENS = 24
REARRANGE_EVERY = 40
"""Steps between two rearrangements of vLLM's balancer."""


class Rank:
    """One engine, and how long its steps take."""

    def __init__(self, model: str, *, is_upstream: bool) -> None:
        vllm = import_module("vllm")
        name_memory_apart()
        options: dict[str, Any] = {}
        if is_upstream:
            lift()
            options = balancer_options(NUM_REDUNDANT, every=REARRANGE_EVERY)
        self._sampling = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=model,
            enforce_eager=True,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=PROMPTS,
            max_num_batched_tokens=PROMPTS * PROMPT_TOKENS,
            enable_prefix_caching=False,
            disable_log_stats=True,
            kv_cache_memory_bytes=64 << 20,
            skip_tokenizer_init=True,
            tensor_parallel_size=2,
            enable_expert_parallel=True,
            distributed_executor_backend="external_launcher",
            **options,
        )
        self._worker = self._llm.collective_rpc(_worker_itself)[0]
        self._balancer = add_balancer(self._worker) if is_upstream else None
        self._hook = self._worker.eplb.hook
        self._numbers = torch.Generator().manual_seed(1)
        self._steps_s: list[float] = []
        self._time_steps()

    def obey(self, command: dict[str, Any]) -> object:
        """Carry one command out and return its answer."""
        match command["do"]:
            case "prefill":
                return self._run(1)
            case "decode":
                self._worker.eplb.hook = self._hook if command["agent"] else None
                steps_s = self._run(ANSWER_TOKENS)[1:]
                self._worker.eplb.hook = self._hook
                return steps_s
            case "received":
                return self._worker.eplb.owned.stack.counters().received_HLS.sum(axis=0).tolist()
            case "held":
                return self._worker.eplb.owned.stack.held().tolist()
            case other:
                raise ValueError(f"no such command: {other}")

    def _run(self, num_tokens: int) -> list[float]:
        """Answer all prompts together; return the seconds of each step."""
        self._steps_s.clear()
        drawn = torch.randint(
            0, BYTES, (PROMPTS, PROMPT_TOKENS - num_tokens), generator=self._numbers
        )
        params = self._sampling(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": row} for row in drawn.tolist()]
        self._llm.generate(prompts, params, use_tqdm=False)
        return list(self._steps_s)

    def _time_steps(self) -> None:
        worker = self._worker.worker
        run = worker.execute_model

        def timed(*values: Any, **keywords: Any) -> object:
            began_s = time.perf_counter()
            returned = run(*values, **keywords)
            self._steps_s.append(time.perf_counter() - began_s)
            return returned

        worker.execute_model = timed


def _worker_itself(worker: object) -> object:
    return worker


def main() -> int:
    """Serve until the input ends."""
    replies, model, kind = sys.argv[1:]
    with os.fdopen(int(replies), "w", buffering=1) as answers:
        try:
            rank = Rank(model, is_upstream=kind == "upstream")
            print(json.dumps({"is": "ready"}), file=answers)
            for line in sys.stdin:
                print(json.dumps({"is": rank.obey(json.loads(line))}), file=answers)
        except BaseException:  # noqa: BLE001  whatever it was, the measurement tells it
            print(json.dumps({"failed": traceback.format_exc()}), file=answers)
            return 1
        answers.flush()
        os._exit(0)  # gloo's threads hold the interpreter's own end up
    return 0


if __name__ == "__main__":
    sys.exit(main())
