# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""The process of one rank: a real vLLM engine whose worker is in the same process.

Reads commands from its standard input and answers on the descriptor that it was given.
"""

import json
import os
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from typing import Any

from torch import Tensor

from benchmarks.balance_vllm.lift import add_balancer, balancer_options, lift
from benchmarks.balance_vllm.memory import name_memory_apart
from benchmarks.demo_vllm.parts import START_S
from benchmarks.demo_vllm.prompts import NUM_TOKENS, PROMPTS
from tests.vllm.oracles import by_transformers, require_reference
from tests.vllm.routed import RoutedIds
from tests.vllm.words import Answer, Job, Stats


class Rank:
    """One engine, and what a test may ask of it."""

    def __init__(self, job: Job) -> None:
        vllm = import_module("vllm")
        name_memory_apart()
        if job.model.endswith("k3"):
            import_module("tests.vllm.k3_host").register()
        self._model = job.model
        self._epochs: list[tuple[int, int]] = []
        self._params = vllm.SamplingParams(
            temperature=0.0, max_tokens=NUM_TOKENS, logprobs=0, ignore_eos=True, detokenize=False
        )
        if job.drives:
            lift()
        self._llm = vllm.LLM(**arguments(job))
        self._worker = self._llm.collective_rpc(_worker_itself)[0]
        eplb = getattr(self._worker, "eplb", None)  # of the worker, through its wrapper
        self._hook: Any = eplb and eplb.hook
        if job.drives:
            self._hook = driven_upstream(self._worker, job.drives)
        self._routed = None if job.is_drafted else RoutedIds(self._worker)
        self._watch_epochs()

    def obey(self, command: dict[str, Any]) -> object:
        """Carry one command out and return its answer."""
        match command["do"]:
            case "generate":
                return [asdict(answer) for answer in self._generate()]
            case "stats":
                return asdict(self._stats())
            case "oracle":
                return [asdict(answer) for answer in self._oracle()]
            case "reload":
                return self._reload()
            case "draft":
                stack = self._worker.eplb.draft.owned.stack
                return {
                    "held": stack.held().tolist(),
                    "load": int(stack.counters().received_HLS.sum()),
                }
            case "roll":
                return self._roll(int(command["by"]))
            case other:
                raise ValueError(f"no such command: {other}")

    def close(self) -> None:
        """End the worker, as vLLM does."""
        self._worker.shutdown()

    def _generate(self) -> list[Answer]:
        prompts = [{"prompt_token_ids": list(text.encode())} for text in PROMPTS]
        found = self._llm.generate(prompts, self._params, use_tqdm=False)
        answers: list[Answer] = []
        for one in found:
            out = one.outputs[0]
            tokens = list(out.token_ids)
            pairs = zip(tokens, out.logprobs, strict=True)
            logprobs = [float(row[token].logprob) for token, row in pairs]
            experts = [] if self._routed is None else self._routed.of(one.request_id)
            answers.append(Answer(tokens, logprobs, experts))
        return answers

    def _oracle(self) -> list[Answer]:
        """Answer without vLLM, or, for Kimi K3's block, with every block held to a reference."""
        answers = self._generate()
        if not self._model.endswith("k3"):
            return by_transformers(self._model, answers)
        seen: list[tuple[Tensor, Tensor]] = []
        blocks = [layer.mlp for layer in self._worker.get_model().model.layers]
        for number, block in enumerate(blocks):
            handle = block.register_forward_hook(
                lambda _block, given, out: seen.append((given[0].clone(), out.clone()))
            )
            self._generate()
            handle.remove()
            require_reference(self._model, number, seen)
            seen.clear()
        return answers

    def _stack(self) -> Any:
        return self._worker.eplb.owned.stack

    def _stats(self) -> Stats:
        digest = import_module("moe_runtime.vllm").digest
        stack = self._stack()
        counters = stack.counters()
        held = stack.held().tolist()
        digests = [
            [digest(stack.slots.expert_tensors(layer, slot)).hex() for slot in range(len(row))]
            for layer, row in enumerate(held)
        ]
        kinds = ("real", "dummy", "warmup", "profile")
        return Stats(
            held=held,
            digests=digests,
            received=counters.received_HLS.sum(axis=0).tolist(),
            sent=counters.sent_HLE.sum(axis=0).tolist(),
            tokens=int(counters.tokens_H.sum()),
            steps=dict(zip(kinds, counters.steps_G.tolist(), strict=True)),
            epochs=list(self._epochs),
            is_halted=self._hook.state().is_halted,
        )

    def _reload(self) -> None:
        self._llm.collective_rpc("reload_weights")
        self._hook = self._worker.eplb.hook
        self._watch_epochs()

    def _roll(self, by: int) -> None:
        """Change the map and leave the weights where they are.

        What each slot is said to hold is changed alike, since otherwise the layer refuses.
        """
        stack = self._stack()
        for layer in range(stack.facts.num_layers):
            table = stack.live_table(layer)
            table.copy_(table.roll(by, 0))
        held_LS = vars(stack.slots)["_held_LS"]
        held_LS[:] = (held_LS + by) % stack.facts.num_experts

    def _watch_epochs(self) -> None:
        if self._hook is None:
            return
        hook, before_step = self._hook, self._hook.before_step

        def watched() -> int:
            step = before_step()
            epoch = int(hook.state().epoch)
            if not self._epochs or self._epochs[-1][0] != epoch:
                self._epochs.append((epoch, step))
            return step

        hook.before_step = watched


def driven_upstream(worker: Any, endpoint: str) -> Any:
    """Put vLLM's own balancer in the place of our agent, and drive it; return the hook."""
    main = import_module("worker_agent.main")
    settings = import_module("worker_agent.settings.settings")
    told = settings.AgentSettings(endpoint=endpoint, wait_for_welcome_s=START_S)
    worker.eplb.detach("vLLM's own balancer is to be driven")
    group = import_module("vllm.distributed").get_ep_group().cpu_group

    def attach(seat: Any) -> Any:
        return main.attach_seat(
            seat,
            main.street(told),
            settings=told,
            group=group,
            mover=import_module("worker_agent.adapters.promises").PromiseMover,
        )

    driving = import_module("worker_agent.adapters.vllm.driving")
    return driving.drive_loaded(add_balancer(worker), attach)


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
    size = {"dp": "data_parallel_size", "tp": "tensor_parallel_size"}[job.layout]
    return {
        **given,
        size: job.num_ranks,
        "enable_expert_parallel": True,
        "distributed_executor_backend": "external_launcher",
    }


def environment(job: Job) -> dict[str, str]:
    """What the process is started with."""
    return {
        "RANK": str(job.rank),
        "LOCAL_RANK": str(job.rank),
        "WORLD_SIZE": str(job.num_ranks),
        "LOCAL_WORLD_SIZE": str(job.num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **serving_environment(),
    }


def serving_environment() -> dict[str, str]:
    """What any process of vLLM needs here."""
    return {
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _worker_itself(worker: object) -> object:
    return worker


def main() -> int:
    """Serve until the input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    try:
        rank = Rank(Job(**json.loads(sys.argv[2])))
        print(json.dumps({"is": "ready"}), file=replies)
        for line in sys.stdin:
            print(json.dumps({"is": rank.obey(json.loads(line))}), file=replies)
        rank.close()
        # Gloo's threads hold the interpreter's own end up, long after the worker has ended.
        replies.flush()
        os._exit(0)
    except BaseException:  # noqa: BLE001  whatever it was, the test tells it
        print(json.dumps({"failed": traceback.format_exc()}), file=replies)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
