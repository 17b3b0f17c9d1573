# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""The process of one real vLLM engine: one rank of a group, or an engine that starts its workers.

Reads commands from its standard input and answers on the descriptor that it was given.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

from torch import Tensor

from benchmarks.balance_vllm.lift import balancer_options, lift
from benchmarks.balance_vllm.memory import name_memory_apart
from benchmarks.demo_vllm.prompts import NUM_TOKENS, PROMPTS
from tests.vllm import on_ray, probe
from tests.vllm.oracles import by_transformers, is_alone_in_it, require_reference
from tests.vllm.words import Answer, Job


class Rank:
    """One engine, and what a test may ask of it and its workers."""

    def __init__(self, job: Job) -> None:
        if job.executor == "ray":
            on_ray.start(job.num_ranks)
        vllm = import_module("vllm")
        if job.executor == "external_launcher":
            name_memory_apart()
        if job.model.endswith("k3"):
            import_module("tests.vllm.k3_host").register()
        self._model = job.model
        self._params = vllm.SamplingParams(
            temperature=0.0, max_tokens=NUM_TOKENS, logprobs=0, ignore_eos=True, detokenize=False
        )
        if job.drives:
            lift()
        self._llm = vllm.LLM(**arguments(job))
        self._workers(probe.install, job.as_json())

    def obey(self, command: dict[str, Any]) -> object:
        """Carry one command out and return its answer; of all workers where each has its own."""
        match command["do"]:
            case "generate":
                return [asdict(answer) for answer in self._generate()]
            case "stats":
                return self._workers(probe.stats)
            case "oracle":
                return [asdict(answer) for answer in self._oracle()]
            case "reload":
                self._llm.collective_rpc("reload_weights")
                return self._workers(probe.attached_anew)
            case "draft":
                return self._workers(probe.draft)
            case "roll":
                return self._workers(probe.roll, int(command["by"]))
            case other:
                raise ValueError(f"no such command: {other}")

    def close(self) -> None:
        """End the workers, as vLLM does."""
        self._llm.collective_rpc("shutdown")

    def _workers(self, what: Callable[..., Any], *values: object) -> list[Any]:
        return self._llm.collective_rpc(what, args=values)

    def _generate(self) -> list[Answer]:
        prompts = [{"prompt_token_ids": list(text.encode())} for text in PROMPTS]
        found = self._llm.generate(prompts, self._params, use_tqdm=False)
        names = [one.request_id for one in found]
        first, *_ = self._workers(probe.routed, names)
        answers: list[Answer] = []
        for one, experts in zip(found, first, strict=True):
            out = one.outputs[0]
            tokens = list(out.token_ids)
            pairs = zip(tokens, out.logprobs, strict=True)
            logprobs = [float(row[token].logprob) for token, row in pairs]
            answers.append(Answer(tokens, logprobs, experts))
        return answers

    def _oracle(self) -> list[Answer]:
        """Answer without vLLM, or, where nobody else can, with every block held to a reference."""
        answers = self._generate()
        if not is_alone_in_it(self._model):
            return by_transformers(self._model, answers)
        seen: list[tuple[Tensor, Tensor]] = []
        (worker,) = self._workers(_worker_itself)  # of this process, as the only one's is
        blocks = [layer.mlp for layer in worker.get_model().model.layers]
        for number, block in enumerate(blocks):
            handle = block.register_forward_hook(
                lambda _block, given, out: seen.append((given[0].clone(), out.clone()))
            )
            self._generate()
            handle.remove()
            require_reference(self._model, number, seen)
            seen.clear()
        return answers


def arguments(job: Job) -> dict[str, Any]:
    """What vLLM is started with."""
    given: dict[str, Any] = {
        "model": job.model,
        "enforce_eager": True,
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "kv_cache_memory_bytes": 64 << 20,
        "skip_tokenizer_init": True,
        # vLLM's own rotary kernel is wrong on the CPU for multi-head latent attention.
        "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]},
    }
    if job.is_drafted:
        drafting = {"method": "draft_model", "model": job.model, "num_speculative_tokens": 2}
        given |= {"speculative_config": drafting}
    if job.layout == "alone":
        return given
    if job.drives:
        given |= balancer_options(2, every=1_000_000)
    return {
        **given,
        **sizes(job),
        "enable_expert_parallel": True,
        "distributed_executor_backend": job.executor,
    }


def sizes(job: Job) -> dict[str, int]:
    """How ranks are shared among engines, stages and tensor-parallel groups."""
    match job.layout:
        case "alone":
            return {}
        case "dp":
            return {"data_parallel_size": job.num_ranks}
        case "tp":
            return {"tensor_parallel_size": job.num_ranks}
        case "pp":
            return {"pipeline_parallel_size": 2, "tensor_parallel_size": job.num_ranks // 2}
        case "dptp":
            return {"data_parallel_size": 2, "tensor_parallel_size": job.num_ranks // 2}


def environment(job: Job) -> dict[str, str]:
    """What the process is started with."""
    found = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if job.executor != "external_launcher":
        return found
    return found | {
        "RANK": str(job.rank),
        "LOCAL_RANK": str(job.rank),
        "WORLD_SIZE": str(job.num_ranks),
        "LOCAL_WORLD_SIZE": str(job.num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
    }


def _worker_itself(worker: object) -> object:
    return worker


def main() -> int:
    """Serve until the input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    try:
        job = Job(**json.loads(sys.argv[2]))
        rank = Rank(job)
        print(json.dumps({"is": "ready"}), file=replies)
        for line in sys.stdin:
            print(json.dumps({"is": rank.obey(json.loads(line))}), file=replies)
        rank.close()
        if job.executor == "ray":
            on_ray.stop()
        # Gloo's threads hold the interpreter's own end up, long after the worker has ended.
        replies.flush()
        os._exit(0)
    except BaseException:  # noqa: BLE001  whatever it was, the test tells it
        print(json.dumps({"failed": traceback.format_exc()}), file=replies)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
