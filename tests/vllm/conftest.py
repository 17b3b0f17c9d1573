"""What unpatched vLLM answers, once for each model, and one controller for all groups."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from benchmarks.demo_vllm.models import write_deepseek, write_k3, write_qwen3
from benchmarks.demo_vllm.parts import Controller
from tests.vllm.checkpoints import (
    FORMS,
    MEANING,
    rows_are_quantised,
    write_meaning,
    write_quantised,
)
from tests.vllm.group import VllmGroup, largest_difference
from tests.vllm.oracles import is_alone_in_it
from tests.vllm.words import Answer


def write_both(folder: Path, form: str) -> Path:
    """Write a model with quantised experts, and beside it what its codes stand for."""
    write_meaning(folder.with_name(folder.name + MEANING), form)
    return write_quantised(folder, form)


WRITERS = {
    "qwen3": write_qwen3,
    "deepseek": write_deepseek,
    "k3": write_k3,
    **{
        form: partial(write_both if rows_are_quantised(form) else write_meaning, form=form)
        for form in FORMS
    },
}
AGREE_EVERY = 2
Golden = Callable[[str], tuple[Path, list[Answer]]]


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Return a model's folder and its answers from one process of unpatched vLLM.

    The answers are held against transformers', so that a broken engine cannot become the truth.
    Of quantised experts it is what their codes stand for that unpatched vLLM serves.
    Kimi K3's block is no part of transformers and does not run on vLLM's own CPU kernels, and
    experts that quantise the rows they read have none on every CPU: there the truth is one rank of
    ours, each block of which is held against its formula in float64.
    """

    @cache
    def made(name: str) -> tuple[Path, list[Answer]]:
        folder = tmp_path_factory.mktemp(name)
        model = WRITERS[name](folder / name)
        is_ours = is_alone_in_it(str(model))
        extra = {"EPLB_VLLM_ENABLED": "1", **nobody()} if is_ours else {}
        group = VllmGroup(model, "alone", 1, folder, extra)
        try:
            (answers,) = group.generate()
            (told,) = group.ask(do="oracle")
            oracle = [Answer(**one) for one in told]
            assert [one.tokens for one in oracle] == [one.tokens for one in answers]
            assert largest_difference(oracle, answers) < 1e-4
        finally:
            group.kill()
        return model, answers

    return made


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    process = Controller(tmp_path_factory.mktemp("controller"), AGREE_EVERY)
    try:
        process.run()
        yield process
    finally:
        process.kill()


def nobody() -> dict[str, str]:
    """An agent whose controller never answers."""
    return {"EPLB_AGENT_ENDPOINT": "127.0.0.1:1", "EPLB_AGENT_WAIT_FOR_WELCOME_S": "0"}
