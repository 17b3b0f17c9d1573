"""An OpenAI-compatible server under six clients, rebalanced by a controller that also dies."""

from pathlib import Path

import pytest

from benchmarks.demo_vllm.main import run

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]


def test_every_request_is_answered_as_vllm_alone_answers_it(tmp_path: Path) -> None:
    """Engine side of F15, F53 and F62: six clients leave engines idle in turns, and while experts
    move the server keeps saying that it is healthy.
    """
    summary = run(tmp_path)
    assert summary.is_right(), summary
