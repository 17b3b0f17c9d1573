"""Ranks without tokens: the same collectives in the same order, in serving and while moving."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from eplb_service.domain.moves import align
from moe_runtime.runtime import Batch, ByGate, DenseReference, ExchangeMode, Phase, Step, StepKind
from tests.agent.scripts import Script, Spent, order_of, waves_between
from tests.agent.serving import MAX_STEPS, TOLERANCE, WIDTH, Case, Serving, random_placement, served
from tests.runtime.ranks import run_ranks

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CASE = Case(4, 2, 3, 6)
TOKENS = (6, 0, 3, 0)
COLLECTIVES = ("all_to_all_single", "all_reduce", "all_gather", "broadcast", "barrier")
Log = list[tuple[str, str]]


@contextmanager
def heard() -> Generator[Log]:
    """Note every collective of torch that this thread issues: its name, and on which group."""
    log: Log = []
    own_thread = get_ident()
    real = {name: getattr(dist, name) for name in COLLECTIVES}

    def noting(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if get_ident() == own_thread:
                is_all = named.get("group") in (None, dist.group.WORLD)
                log.append((name, "rows" if is_all else "agreement"))
            return inner(*args, **named)

        return call

    for name, inner in real.items():
        setattr(dist, name, noting(name, inner))
    try:
        yield log
    finally:
        for name, inner in real.items():
            setattr(dist, name, inner)


def step(serving: Serving, num_tokens: int) -> None:
    """Take one step with so many tokens, and hold the output against the reference."""
    serving.hook.before_step()
    if num_tokens == 0:
        serving.runtime.forward(Batch.dummy(WIDTH, dtype=torch.float64))
    else:
        draw = torch.Generator().manual_seed(serving.num_steps)
        x_TD = torch.randn((num_tokens, WIDTH), generator=draw, dtype=torch.float64)
        batch = Batch.of(x_TD, ByGate(), Step(StepKind.REAL, Phase.DECODE))
        want_TD = DenseReference(serving.runtime.model).forward(x_TD, ByGate())
        off = (serving.runtime.forward(batch) - want_TD).abs().max() / want_TD.abs().max()
        assert off < TOLERANCE
    serving.hook.after_step()
    serving.num_steps += 1


def serve_and_move(rank: int, mode: ExchangeMode) -> tuple[Log, int]:
    """Serve until a wave has been switched to, and four steps more; who idles takes turns."""
    draw = np.random.default_rng(4)
    old, new = (random_placement(CASE, draw) for _ in range(2))
    wave, *_ = waves_between(old, align(old, new), staging_rows=6)
    script = Script()
    with served(CASE, rank, old, script, staging_rows=6, mode=mode) as serving, heard() as log:
        spent = Spent(wave, base_epoch=0, epoch=1, expires_at_step=MAX_STEPS)
        script.say(order_of(spent, rank=rank, incarnation=script.incarnation))
        remaining = len(TOKENS)
        while remaining:
            step(serving, TOKENS[(rank + serving.num_steps // 2) % len(TOKENS)])
            remaining -= serving.hook.state().epoch == 1
            assert serving.num_steps < MAX_STEPS
        serving.require_content(wave.placement)
        return log, serving.num_steps


def serve_in_every_mode(rank: int, modes: list[ExchangeMode]) -> list[tuple[Log, int]]:
    return [serve_and_move(rank, mode) for mode in modes]


def test_f53_idle_ranks_issue_the_same_collectives_while_a_wave_is_switched() -> None:
    modes = list(ExchangeMode)
    by_rank = run_ranks(serve_in_every_mode, modes, num_ranks=CASE.ranks)
    for mode, *ended in zip(modes, *by_rank, strict=True):
        logs, steps = zip(*ended, strict=True)
        assert len(set(steps)) == 1, mode
        assert all(log == logs[0] for log in logs), mode
        assert {group for _, group in logs[0]} == {"rows", "agreement"}
