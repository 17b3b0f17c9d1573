"""Prove the lowest peaks and the fewest moves of small layers, and write them to optima.json.

Runs in an environment of its own (requirements.txt), and imports nothing of the project. Loads
are exact: tokens times 12, which 1, 2, 3 and 4 replicas divide.

Axes    E experts   N ranks
"""

import json
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from math import exp
from pathlib import Path
from typing import Any

cp_model: Any = import_module("ortools.sat.python.cp_model")

NUM_LAYERS = 200
MOST_RANKS = 4
MOST_EXPERTS = 8
SCALE = 12
WITHIN = 1.005
DRIFT = 0.25

Ranks = list[list[int]]


class Layer:
    """All placements of one layer as a model of the solver, and what each costs."""

    def __init__(self, heat: Sequence[int], held: Ranks) -> None:
        self.model = cp_model.CpModel()
        ranks, experts = range(len(held)), range(len(heat))
        self.holds = [[self.model.new_bool_var(f"holds_{r}_{e}") for e in experts] for r in ranks]
        counts = [[self.model.new_bool_var(f"count_{e}_{c}") for c in ranks] for e in experts]
        for expert in experts:
            self.model.add_exactly_one(counts[expert])
            replicas = sum((c + 1) * counts[expert][c] for c in ranks)
            self.model.add(sum(self.holds[r][expert] for r in ranks) == replicas)
        self.peak = self.model.new_int_var(0, SCALE * sum(heat), "peak")
        for rank in ranks:
            self.model.add(sum(self.holds[rank]) == len(held[rank]))
            load = 0
            for expert in experts:
                for count in ranks:
                    part = self.model.new_bool_var(f"part_{rank}_{expert}_{count}")
                    both = self.holds[rank][expert] + counts[expert][count]
                    self.model.add(part >= both - 1)
                    load += SCALE // (count + 1) * heat[expert] * part
            self.model.add(self.peak >= load)
        self.moves = sum(
            self.holds[rank][expert]
            for rank in ranks
            for expert in experts
            if expert not in held[rank]
        )

    def least(self, what: Callable[["Layer"], Any]) -> tuple[int, Ranks]:
        """Minimise; return the proved minimum and a placement that has it."""
        self.model.minimize(what(self))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        status = solver.solve(self.model)
        if status != cp_model.OPTIMAL:
            raise RuntimeError(f"the solver ended with {solver.status_name(status)}; no proof")
        placed = [[e for e, on in enumerate(of) if solver.value(on)] for of in self.holds]
        return round(solver.objective_value), placed


def fewest_moves(heat: Sequence[int], held: Ranks, peak: int) -> int:
    """Prove how many moves lead to a peak of at most so much."""
    layer = Layer(heat, held)
    layer.model.add(layer.peak <= peak)
    return layer.least(lambda of: of.moves)[0]


def drawn_by_chance(rng: random.Random, sizes: Sequence[int], num_experts: int) -> Ranks:
    """Draw a placement that holds every expert; sizes must leave room for all of them."""
    while True:
        held = [rng.sample(range(num_experts), size) for size in sizes]
        if len({expert for rank in held for expert in rank}) == num_experts:
            return held


def draw(seed: int) -> tuple[list[int], Ranks]:
    """Draw the heat [E] and what each rank holds."""
    rng = random.Random(seed)
    num_ranks, num_experts = rng.randint(2, MOST_RANKS), rng.randint(3, MOST_EXPERTS)
    fewest = -(-num_experts // num_ranks)
    size = rng.randint(fewest, min(fewest + 2, num_experts))
    sizes = [size] * num_ranks
    if rng.random() < 0.25 and size > 1 and num_ranks * size > num_experts:
        sizes[rng.randrange(num_ranks)] -= 1
    heat = [rng.lognormvariate(0, 0.8) for _ in range(num_experts)]
    held = drawn_by_chance(rng, sizes, num_experts)
    whole = [round(1000 * tokens) for tokens in heat]
    if seed % 2:
        return whole, held
    _, held = Layer(whole, held).least(lambda of: of.peak)
    return [round(1000 * tokens * exp(rng.gauss(0, DRIFT))) for tokens in heat], held


def main() -> None:
    """Solve all layers, in order."""
    lines: list[str] = []
    for seed in range(NUM_LAYERS):
        heat, held = draw(seed)
        peak, _ = Layer(heat, held).least(lambda of: of.peak)
        layer = {
            "heat": heat,
            "ranks": held,
            "peak_times_12": peak,
            "moves_to_peak": fewest_moves(heat, held, peak),
            "moves_to_half_a_percent": fewest_moves(heat, held, int(WITHIN * peak)),
        }
        lines.append(json.dumps(layer))
    out = Path(__file__).parent / "optima.json"
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
