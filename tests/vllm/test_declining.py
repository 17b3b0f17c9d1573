"""A model without MoE layers is refused before it is loaded, or served by vLLM alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.demo_vllm.parts import free_port, serving_environment
from tests.vllm.conftest import Golden, nobody
from tests.vllm.group import VllmGroup

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 288,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}


def test_a_model_without_experts_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    """Case F63: there are no weights in the folder, and none are asked for.

    What else is against it is told in the same line: vLLM would compile it.
    """
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    options = ["--model", str(tmp_path), "--port", str(free_port()), "--host", "127.0.0.1"]
    env = {**os.environ, **serving_environment(), **nobody(), "EPLB_VLLM_ENABLED": "1"}
    del env["TORCH_COMPILE_DISABLE"]
    done = subprocess.run(
        [*command, *options, "--skip-tokenizer-init", "--dtype", "float32"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said[-3000:]
    assert said.count("it has no MoE layers, so there is nothing to balance") == 1
    assert said.count("set --enforce-eager") == 1
    assert "Traceback" not in said


def test_what_is_seen_only_in_a_loaded_model_is_left_to_vllm_whole(
    golden: Golden, tmp_path: Path
) -> None:
    """Nothing in between: the model is built and loaded once more, all of it by vLLM alone."""
    model, want = golden("qwen3")
    extra = {
        "EPLB_VLLM_ENABLED": "1",
        "EPLB_VLLM_UNOWNED": "serve",
        "EPLB_VLLM_MEMORY_BUDGET_MIB": "0.001",
        **nobody(),
    }
    group = VllmGroup(model, "alone", 1, tmp_path, extra)
    try:
        (got,) = group.generate()
        said = group.members[0].said()
    finally:
        group.kill()
    assert got == want
    assert said.count("is served by vLLM alone, without placements") == 1
    assert "more than the budget of 1048 " in said
