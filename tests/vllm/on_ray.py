# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The rules are off in this file only: it drives vLLM, which is not there when types are checked.
"""vLLM with its workers on Ray: one process that answers, whose two workers are Ray's actors.

vLLM knows no Ray on CPUs. A platform plugin of four lines lets it take CPUs for what Ray calls
NPUs, which is how Ray places the workers of Ascend machines.
"""

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.demo_vllm.prompts import NUM_TOKENS, PROMPTS
from tests.vllm.rank import arguments
from tests.vllm.words import Job

NUM_WORKERS = 2
PLUGIN = "eplb_ray_on_cpu"


def install_platform(folder: Path) -> None:
    """Write the platform plugin, as an installed package, into a folder of the Python path."""
    about = folder / f"{PLUGIN}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[vllm.platform_plugins]\n{PLUGIN} = {PLUGIN}:platform\n"
    )
    (folder / f"{PLUGIN}.py").write_text(
        "from vllm.platforms.cpu import CpuPlatform\n\n\n"
        "def platform():\n"
        f"    return '{PLUGIN}.OnRay'\n\n\n"
        "class OnRay(CpuPlatform):\n"
        "    ray_device_key = 'NPU'\n"
    )


class Driver:
    """The engine, and what a test may ask of it."""

    def __init__(self, job: Job, folder: str) -> None:
        import_module("ray").init(
            address="local",
            resources={"NPU": NUM_WORKERS},
            num_cpus=NUM_WORKERS,
            include_dashboard=False,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        vllm = import_module("vllm")
        told = {**arguments(job), "distributed_executor_backend": "ray"}
        self._llm = vllm.LLM(**told)
        self._params = vllm.SamplingParams(
            temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False
        )

    def obey(self, command: dict[str, Any]) -> object:
        """Carry one command out and return its answer."""
        match command["do"]:
            case "generate":
                prompts = [{"prompt_token_ids": list(text.encode())} for text in PROMPTS]
                found = self._llm.generate(prompts, self._params, use_tqdm=False)
                return [list(one.outputs[0].token_ids) for one in found]
            case "stats":
                return self._llm.collective_rpc(_stats)
            case other:
                raise ValueError(f"no such command: {other}")


def _stats(worker: Any) -> dict[str, object]:
    """What a worker holds and serves; runs in the worker."""
    bound = worker.eplb
    state = bound.hook.state()
    return {
        "held": bound.owned.stack.held().tolist(),
        "epoch": int(state.epoch),
        "is_halted": state.is_halted,
    }


def main() -> int:
    """Serve until the input ends."""
    replies = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    told = json.loads(sys.argv[2])
    try:
        driver = Driver(Job(**told["job"]), told["folder"])
        print(json.dumps({"is": "ready"}), file=replies)
        for line in sys.stdin:
            print(json.dumps({"is": driver.obey(json.loads(line))}), file=replies)
        import_module("ray").shutdown()
    except BaseException:  # noqa: BLE001  whatever it was, the test tells it
        print(json.dumps({"failed": traceback.format_exc()}), file=replies)
        return 1
    replies.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
