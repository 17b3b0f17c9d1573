"""What would more slots buy? Computed from counts in any of the known formats."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.counts import domain_counts
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from tests.cli.conftest import Ctl

SKEWED = np.array([[80, 10, 20, 10], [10, 10, 10, 10]])
"""[L, E]: one expert of the first layer takes two thirds; the second layer is level."""


def counts(folder: Path, form: str) -> Path:
    path = folder / f"load.{form}"
    match form:
        case "npz":
            np.savez(path, a=SKEWED)
        case "stages.npz":
            np.savez(path, a=np.stack([SKEWED, SKEWED]), b=np.stack([SKEWED, 0 * SKEWED]))
        case "npy":
            np.save(path, SKEWED)
        case "json":
            path.write_text(json.dumps(SKEWED.tolist()))
        case "sglang.json":
            dense = np.zeros((1, 4), dtype=int)
            steps = [np.concatenate([dense, SKEWED]).tolist()] * 3
            path.write_text(json.dumps({"logical_count": steps}))
        case "sglang.npz":
            np.savez(path, logical_count=SKEWED)
        case _:
            path.write_text(json.dumps({"tokens": SKEWED.tolist(), "layers": [3, 4]}))
    return path


@pytest.mark.parametrize(
    "form", ["npz", "stages.npz", "npy", "json", "sglang.json", "sglang.npz", "heat"]
)
def test_every_format_means_the_same_load(ctl: Ctl, tmp_path: Path, form: str) -> None:
    ran = ctl("simulate", str(counts(tmp_path, form)), "--ranks", "2", "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    first = json.loads(ran.out)["outcomes"][0]
    # Experts 0 and 1 lie on rank 0: 90 of 120 tokens, and half of them in the level layer.
    assert first["before"]["even_worst"] == pytest.approx(1.5)
    assert first["before"]["even"] == pytest.approx(1.25)
    # Without a spare slot the hot expert keeps its rank: 80 and 10 beside 30 is the least.
    assert first["after"]["even_worst"] == pytest.approx(1.5)


def test_one_more_slot_a_rank_divides_the_hot_expert(ctl: Ctl, tmp_path: Path) -> None:
    words = ("--ranks", "2", "--redundancy", "0,2", "--policy", "packing", "-o", "json")
    costs = ("--expert-bytes", "1000", "--step-ms", "40", "--expert-ms", "12", "--stall-ms", "900")
    ran = ctl("simulate", str(counts(tmp_path, "npz")), *words, *costs)
    assert (ran.code, ran.err) == (0, "")
    tree = json.loads(ran.out)
    without, spare = tree["outcomes"]
    assert (without["redundancy"], spare["redundancy"]) == (0, 2)
    assert spare["after"]["even_worst"] == pytest.approx(1.0)
    assert spare["bytes"] == 1000 * spare["moves"]
    assert spare["more_bytes_per_rank"] == 2 * 1000
    now, then = (spare[when]["even"] for when in ("before", "after"))
    won_ms = 12 * (1 - then / now)
    assert spare["payback_steps"] == pytest.approx(900 / won_ms if won_ms else None)
    assert tree["recommended_redundancy"] == 2


def test_auto_names_the_least_redundancy_that_is_enough(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "real.npz"
    np.savez(path, c4=domain_counts("c4"), github=domain_counts("github"))
    words = ("--ranks", "8", "--redundancy", "auto", "--policy", "connected", "--shares")
    ran = ctl("simulate", str(path), *words)
    assert (ran.code, ran.err) == (0, "")
    machine = json.loads(ctl("simulate", str(path), *words, "-o", "json").out)
    enough = machine["recommended_redundancy"]
    reached = {one["redundancy"]: one["after"]["shares"] for one in machine["outcomes"]}
    assert list(reached)[:3] == [0, 8, 16]
    assert reached[enough] <= 1.01 * min(reached.values())
    assert all(reached[n] > 1.01 * min(reached.values()) for n in reached if n < enough)
    assert f"recommended  {enough} redundant, imbalance" in ran.out
    assert "2 windows   3 layers of 64 experts" in ran.out


def test_it_starts_from_the_placement_that_is_served(ctl: Ctl, tmp_path: Path) -> None:
    served = placement_from_ranks([[[1, 3], [0, 2]]] * 2, num_experts=4)
    path = tmp_path / "map.json"
    path.write_text(format_map(served, (3, 4)))
    words = ("--map", str(path), "--policy", "static", "-o", "json")
    ran = ctl("simulate", str(counts(tmp_path, "npz")), *words)
    assert (ran.code, ran.err) == (0, "")
    [found] = json.loads(ran.out)["outcomes"]
    assert (found["num_ranks"], found["moves"]) == (2, 0)
    assert found["before"]["even_worst"] == pytest.approx(100 / 60)


def test_a_policy_that_does_not_fit_gives_way_and_says_so(ctl: Ctl, tmp_path: Path) -> None:
    words = ("--ranks", "4", "--nodes", "4", "--policy", "hierarchical", "--slots", "8")
    ran = ctl("simulate", str(counts(tmp_path, "npz")), *words)
    assert ran.code == 0
    assert "packing is used instead of hierarchical" in ran.err


def test_groups_let_packing_keep_each_on_one_node(ctl: Ctl, tmp_path: Path) -> None:
    words = ("--ranks", "4", "--nodes", "2", "--policy", "hierarchical", "--slots", "8")
    file = str(counts(tmp_path, "npz"))
    ran = ctl("simulate", file, *words, "--groups", "2", "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    [found] = json.loads(ran.out)["outcomes"]
    assert found["policy"] == "hierarchical"
    ran = ctl("simulate", file, *words, "--groups", "0")
    assert ran.code == 2
    assert "0 expert groups; expected 1 or more" in ran.err


def bad_files(folder: Path) -> dict[str, Path]:
    torn = folder / "torn.npz"
    torn.write_bytes(counts(folder, "npz").read_bytes()[:-40])
    text = {
        "neither": b"\xff\xfe",
        "prose": b"tokens: many",
        "other": b'{"experts": 3}',
        "ragged": b"[[1, 2], [3]]",
        "negative": b"[[1, -2]]",
        "nan": b"[[1, NaN]]",
        "overflows": b"[[1e308, 1e308, 1e308, 1e308]]",
        "absurd": b"[[1e16, 1, 1, 1]]",
        "absurd in all": json.dumps([[4e14] * 4]).encode(),
        "deep": b"[" * 100_000,
        "empty": b"[]",
        "dense": b'{"logical_count": [[0, 0]]}',
        "rows": b'{"layers": [1, 2], "tokens": [[1, 2]]}',
    }
    found = {"torn": torn, "missing": folder / "missing"}
    for name, data in text.items():
        found[name] = folder / name
        found[name].write_bytes(data)
    return found


def test_what_is_no_load_is_refused_in_words(ctl: Ctl, tmp_path: Path) -> None:
    for name, path in bad_files(tmp_path).items():
        ran = ctl("simulate", str(path), "--ranks", "1")
        assert (ran.code, ran.out) == (2, ""), name
        assert str(path) in ran.err, name
        assert "Traceback" not in ran.err, name


def test_a_file_of_pytorch_is_not_opened(ctl: Ctl, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "dump.pt"
    torch.save({"logical_count": torch.ones(2, 4)}, path)
    ran = ctl("simulate", str(path), "--ranks", "2")
    assert ran.code == 2
    assert "numpy.savez" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--ranks N"),
        (("--ranks", "3"), "do not divide over 3 ranks; redundancy that divides: 2, 5, 8"),
        (("--ranks", "2", "--redundancy", "6"), "at most 8 distinct replicas"),
        (("--ranks", "2", "--slots", "2"), "2 slots for 4 experts"),
        (("--ranks", "2", "--nodes", "3"), "do not divide over 3 nodes"),
        (("--ranks", "2", "--step-ms", "4", "--expert-ms", "5"), "of a step of 4 ms"),
        (("--ranks", "0"), "expected at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(
    ctl: Ctl, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    ran = ctl("simulate", str(counts(tmp_path, "npz")), *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_no_controller_is_asked(ctl: Ctl, tmp_path: Path) -> None:
    words = ("--endpoint", "127.0.0.1:1", "--ranks", "2")
    assert ctl("simulate", str(counts(tmp_path, "npz")), *words).code == 0
