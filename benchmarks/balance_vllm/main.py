"""`make bench-vllm`: the same requests with no balancer, with vLLM's own, and with ours.

Three engines of two tensor-parallel ranks serve prompts of a model whose router likes few experts.
They take turns, so that all are slowed alike by whatever else the machine does; then vLLM's own
balancer (lifted onto the CPU) and our controller each place experts anew, and they take turns
again. Step times and imbalance are compared as ratios within the run; so are decode steps with and
without the agent beside them.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.balance_vllm.group import Group
from benchmarks.balance_vllm.model import write_skewed
from benchmarks.balance_vllm.rank import NUM_REDUNDANT
from benchmarks.demo_vllm.operators import DeploymentOperator
from benchmarks.demo_vllm.parts import Controller
from benchmarks.figures import Figure, broken, table, write

INSTANCE = "bench"
POLICY = "greedy"
AGREE_EVERY = 4
TURNS = 12
"""Of each engine, before and after."""
PATIENCE = 120
"""Turns within which both balancers must have placed experts anew."""
DECODES = 12
"""Turns of decode steps with the agent, and as many without."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine over some turns."""

    step_s: float
    """Median."""
    imbalance: float
    """Most loaded rank over the mean, mean of the layers."""


def main() -> int:
    """Measure, print and write; 1 if a limit is not kept."""
    with tempfile.TemporaryDirectory(prefix="eplb-bench-vllm-") as folder:
        figures = measure(Path(folder))
    print(table("vllm", figures))
    print(f"  written to {write('vllm', figures, Path('build'))}")
    return 1 if broken(figures) else 0


def measure(folder: Path) -> list[Figure]:
    """Do all of it in a folder of its own."""
    model = write_skewed(folder / "skewed")
    controller = Controller(folder, AGREE_EVERY, report_every=AGREE_EVERY)
    groups: dict[str, Group] = {}
    try:
        controller.run()
        for name in ("none", "upstream", "ours"):
            endpoint = f"127.0.0.1:{controller.port if name == 'ours' else 1}"
            groups[name] = Group(name, model, folder, settings(endpoint))
            groups[name].await_ready()
        operator = DeploymentOperator(controller.port, f"skewed/{INSTANCE}/serve/0/0")
        warm_up(groups)
        before = take_turns(groups)
        balance(groups, operator)
        after = take_turns(groups)
        agent = decode(groups["ours"])
        operator.close()
    finally:
        for group in groups.values():
            group.kill()
        controller.kill()
    return [*compared(before, after), *agent]


def settings(endpoint: str) -> dict[str, str]:
    """The plugin's and the agent's."""
    return {
        "EPLB_VLLM_ENABLED": "1",
        "EPLB_VLLM_REDUNDANT_EXPERTS": str(NUM_REDUNDANT),
        "EPLB_VLLM_STAGING_ROWS": "32",
        "EPLB_AGENT_ENDPOINT": endpoint,
        "EPLB_AGENT_AGREE_EVERY": str(AGREE_EVERY),
        "EPLB_AGENT_DEPLOYMENT__INSTANCE": INSTANCE,
        "EPLB_AGENT_WAIT_FOR_WELCOME_S": "0" if endpoint.endswith(":1") else "30",
    }


def warm_up(groups: Mapping[str, Group]) -> None:
    """Let every engine allocate what it allocates once."""
    for group in groups.values():
        group.ask(do="prefill")


def take_turns(groups: Mapping[str, Group]) -> dict[str, Measured]:
    """Run the engines one after the other, again and again."""
    steps: dict[str, list[float]] = {name: [] for name in groups}
    start = {name: received(group) for name, group in groups.items()}
    for _ in range(TURNS):
        for name, group in groups.items():
            per_rank = group.ask(do="prefill")
            steps[name] += [max(pair) for pair in zip(*per_rank, strict=True)]
    return {
        name: Measured(float(np.median(steps[name])), imbalance(received(group) - start[name]))
        for name, group in groups.items()
    }


def balance(groups: Mapping[str, Group], operator: DeploymentOperator) -> None:
    """Serve until both balancers have placed experts anew."""
    first = {name: group.ask(do="held") for name, group in groups.items()}
    for _ in range(PATIENCE):
        for name in ("upstream", "ours"):
            groups[name].ask(do="prefill")
        is_ours_served = operator.is_calm() and operator.status().epoch > 0
        if operator.is_calm() and not is_ours_served:
            operator.move(POLICY)
        if is_ours_served and groups["upstream"].ask(do="held") != first["upstream"]:
            break
    else:
        raise TimeoutError(f"not both balancers moved experts within {PATIENCE} turns")


def decode(group: Group) -> list[Figure]:
    """Decode steps with the agent and without, in turns."""
    steps_s: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * DECODES):
        per_rank = group.ask(do="decode", agent=turn % 2 == 0)
        steps_s[turn % 2 == 0] += [max(pair) for pair in zip(*per_rank, strict=True)]
    given, without = (
        {q: float(np.quantile(of, q)) for q in (0.5, 0.99)} for of in steps_s.values()
    )
    return [
        Figure("decode step p99 with the agent", 1e3 * given[0.99], "ms"),
        Figure("decode step p99 without it", 1e3 * without[0.99], "ms"),
        Figure("decode step p50 with the agent over without", given[0.5] / without[0.5], ""),
        Figure("decode step p99 with the agent over without", given[0.99] / without[0.99], ""),
    ]


def received(group: Group) -> Counts:
    """Return [N, L]: what each rank's slots received since they were loaded."""
    told: list[Any] = group.ask(do="received")
    return np.array(told, dtype=np.int64).sum(axis=2)


def imbalance(load_NL: Counts) -> float:
    """Return the mean over layers of the most loaded rank over the mean.

    >>> imbalance(np.array([[3, 1], [1, 1]]))
    1.25
    """
    return float((load_NL.max(axis=0) / load_NL.mean(axis=0)).mean())


def compared(before: Mapping[str, Measured], after: Mapping[str, Measured]) -> Sequence[Figure]:
    """Return the figures; the machine's own drift is taken out by the engine without balancer."""
    drift = after["none"].step_s / before["none"].step_s
    found: list[Figure] = []
    for name in before:
        found += [
            Figure(f"{name}: step before", 1e3 * before[name].step_s, "ms"),
            Figure(f"{name}: step after", 1e3 * after[name].step_s, "ms"),
            Figure(f"{name}: imbalance before", before[name].imbalance, ""),
            Figure(f"{name}: imbalance after", after[name].imbalance, ""),
        ]
    for name in ("upstream", "ours"):
        ratio = after[name].step_s / before[name].step_s / drift
        found.append(Figure(f"{name}: step after over before, drift out", ratio, ""))
    over = after["ours"].imbalance / after["upstream"].imbalance
    found.append(Figure("imbalance after, ours over upstream", over, "", at_most=1.1))
    steps = after["ours"].step_s / after["upstream"].step_s
    found.append(Figure("step after, ours over upstream", steps, ""))
    return found


if __name__ == "__main__":
    sys.exit(main())
