"""The compiled loops keep to their memory, and refuse to be missing in silence."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from eplb_service.domain.errors import InvalidSettings
from eplb_service.host.assembly import Service
from eplb_service.host.planner_process import ProcessPlanRunner
from eplb_service.policies.kernels import library
from eplb_service.settings.settings import Settings

SOURCES = sorted(Path(library.__file__).parent.glob("*.c"))

DRAWN = """
import ctypes, sys
import numpy as np
from eplb_service.policies.balance import Balance
from eplb_service.policies.descent import Effort, descend
from eplb_service.policies.kernels import library
from eplb_service.policies.recount import recount, take_back
from eplb_service.policies.request import split_by_tensor_rank
from eplb_service.policies.terms import Terms
from eplb_service.policies.tiny import with_fewest_moves

library._library = lambda: ctypes.CDLL(sys.argv[1])
limits = library.Limits(1.01, 1.005, 1.1, 0.01, 0.02)
rng = np.random.default_rng(0)
for _ in range(150):
    num_ranks = int(rng.integers(1, 9))
    sizes = rng.integers(0, 6, (3, num_ranks))
    sizes[:, 0] = np.maximum(sizes[:, 0], 1)
    sizes = np.tile(sizes[:1], (3, 1))
    num_slots = int(sizes[0].sum())
    num_experts = int(rng.integers(sizes.max(), num_slots + 1))
    heat = rng.choice([0, 1, 5, 1e3, 2.0**63], (3, num_experts)).astype(float)
    heat[0] = 0
    begin = np.concatenate(([0], np.cumsum(sizes[0])))
    for is_joined in (False, True):
        rows = library.packed(sizes, heat, is_joined=is_joined)
        assert rows.shape == (3, num_slots)
        library.num_parts(rows, begin, num_experts)
        scale = np.maximum(heat.sum(axis=1, keepdims=True), 1) / num_ranks
        costs = library.Costs(rng.random(num_ranks) + 0.5, rng.random(3))
        library.best_level(rows, begin, heat / scale, costs)
        library.best_level(rows, begin, heat / scale, costs, enough=1.2)
        split = library.best_shares(rows, begin, heat / scale, costs, slack=0.001)
        sent = np.moveaxis(rng.random((*heat.shape, num_ranks)) * heat[..., None], 2, 0)
        library.whole_sources((rows, begin), sent, split, np.arange(num_ranks) // 2, 0.02)
        library.repaired((rows, begin, heat / scale), costs, limits, (5, 9))
    held = [rng.permutation(5)[: rng.integers(0, 4)].tolist() for _ in range(num_ranks % 5 + 1)]
    split = split_by_tensor_rank(rng.random(len(held)) + 0.1, tensor_ranks=2)
    own = Balance(rng.random(5), held, split, Terms(turn=1, fixed=0.1))
    with_fewest_moves(own, within=0.01, most=int(rng.integers(0, 9)))
    grown = recount(own, highest=own.heat.max() / 3, most_moves=4)
    take_back(descend(grown, Effort(max_moves=5), since=own), own, limit=0.0, highest=9.0)
print("all drawn")
"""


@pytest.mark.slow
def test_no_loop_leaves_its_memory(tmp_path: Path) -> None:
    built = tmp_path / "checked.so"
    flags = ["-std=c11", "-g", "-O1", "-fPIC", "-shared", "-fsanitize=address,undefined"]
    subprocess.run(["gcc", *flags, "-o", built, *SOURCES], check=True)
    asan = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    )
    script = tmp_path / "drawn.py"
    script.write_text(DRAWN)
    ended = subprocess.run(
        [sys.executable, script, built],
        env={
            "LD_PRELOAD": asan.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "halt_on_error=1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "all drawn\n", ended.stderr
    assert not ended.stderr


def test_loops_that_were_not_built_are_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        assert name.endswith("kernels._loops")
        return None

    library._library.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(library, "find_spec", nothing)
    with pytest.raises(InvalidSettings, match="install a C compiler"):
        Service(Settings(), ProcessPlanRunner())
    one, costs = np.ones((1, 1)), library.plain_costs(1, 1)
    with pytest.raises(InvalidSettings, match="install a C compiler"):
        library.best_level(np.zeros((1, 1), np.int64), np.array([0, 1]), one, costs)


def test_loops_of_other_sources_are_told_from_these() -> None:
    with pytest.raises(InvalidSettings, match="built from other sources, which had no eplb_dance"):
        library.call("eplb_dance", (1, 1, 1, 1), ())


def test_packing_grants_replicas_to_the_hottest_and_keeps_loads_near() -> None:
    heat = np.random.default_rng(5).lognormal(0, 1, (4, 24))
    rows = library.packed(np.full((4, 8), 4), heat, is_joined=False)
    for row, tokens in zip(rows, heat, strict=True):
        counts = np.bincount(row, minlength=24)
        assert counts.sum() == 32
        portions = tokens / counts
        load = portions[row].reshape(8, 4).sum(axis=1)
        assert load.max() <= load.mean() + portions.max()
        assert all(len(set(own)) == 4 for own in row.reshape(8, 4).tolist())
        before = np.where(counts > 1, tokens / np.maximum(counts - 1, 1), np.inf)
        assert portions.max() <= before.min() * (1 + 1e-12)
