"""The placement benchmark draws the same loads everywhere and counts what it says it counts."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.placement.__main__ import main
from benchmarks.placement.counts_file import counts_of_file
from benchmarks.placement.judging import judge, look_again
from benchmarks.placement.scenarios import NUM_STAGES, Scenario, by_source, source_weights, windows
from benchmarks.placement.shapes import SHAPES, Shape
from eplb_service.domain.errors import InvalidSettings, InvalidTable
from eplb_service.domain.ids import array_bytes, digest_of
from eplb_service.domain.placement import placement_from_ranks

SMALL = Shape("small", 3, 12, 16, 4, 2, num_groups=2)
FIRST_WINDOWS = {
    ("dsv3-ep32", "STEADY"): 0x04F3C3084BE8BF63,
    ("dsv3-ep32", "DRIFT"): 0x27BB33585C73F24A,
    ("dsv3-ep32", "BURST"): 0x532176800295683B,
    ("dsv3-ep32", "SHIFT"): 0x2A882C287B9096BE,
    ("dsv3-ep32", "ZIPF"): 0x0DF884FD1194E328,
    ("qwen3-ep16", "STEADY"): 0x54F781B7F69AD306,
    ("qwen3-ep16", "DRIFT"): 0x3119FEADCF207E64,
    ("qwen3-ep16", "BURST"): 0x6A3927BF8B1D8E44,
    ("qwen3-ep16", "SHIFT"): 0x45945E42572797C5,
    ("qwen3-ep16", "ZIPF"): 0x3B1C13C63588F79A,
    ("k3-ep64", "STEADY"): 0x7041FC09D74E9ADD,
    ("k3-ep64", "DRIFT"): 0x574C0057EA2C0AE9,
    ("k3-ep64", "BURST"): 0x6DF5ACA583628858,
    ("k3-ep64", "SHIFT"): 0x599DF1B0A02CAEF7,
    ("k3-ep64", "ZIPF"): 0x3EE3C0E21541AC19,
}
COLUMNS = {
    *("shape", "scenario", "seed", "policy", "window", "valid", "imbalance_even"),
    *("imbalance_shares", "imbalance_maps", "next_even", "next_shares_stale"),
    *("next_shares_fresh", "moves", "inter_node_moves", "ms"),
}
FLAT = ["--slots", "80", "--ranks", "8", "--nodes", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "scenario"), FIRST_WINDOWS)
def test_a_seed_draws_the_same_first_window_everywhere(shape: str, scenario: str) -> None:
    full = SHAPES[shape]
    drawn = windows(Scenario[scenario], full, seed=0, num_windows=full.num_windows)
    assert digest_of((array_bytes(next(drawn)),)) == FIRST_WINDOWS[shape, scenario]


@pytest.mark.parametrize("scenario", Scenario)
def test_windows_repeat_for_a_seed_and_differ_between_seeds(scenario: Scenario) -> None:
    first, again, other = (
        np.stack(list(windows(scenario, SMALL, seed=seed, num_windows=3))) for seed in (1, 1, 2)
    )
    assert first.shape == (3, NUM_STAGES, 3, 12)
    assert (first == again).all()
    assert (first != other).any()
    assert first.min() >= 1


def test_a_shift_changes_the_text_in_the_middle_and_steady_load_stays() -> None:
    def distance(scenario: Scenario) -> list[float]:
        drawn = windows(scenario, SHAPES["qwen3-ep16"], seed=0, num_windows=4)
        logs = np.log([stages.sum(axis=0) for stages in drawn])
        return [float(d.std()) for d in np.diff(logs, axis=0)]

    before, middle, after = distance(Scenario.SHIFT)
    assert middle > 3 * max(before, after)
    assert max(distance(Scenario.STEADY)) < 0.1


def test_sources_send_all_tokens_by_their_weights() -> None:
    tokens = np.full((2, 5), 100_000)
    weights = source_weights(4, seed=3)
    sources = by_source(tokens, weights, seed=3, window=1)
    assert (sources.sum(axis=0) == tokens).all()
    assert sources[:, 0, 0] / 100_000 == pytest.approx(weights, abs=0.01)


def test_shapes_are_those_of_the_models_and_divide() -> None:
    assert [(name, shape.num_slots) for name, shape in SHAPES.items()] == [
        *(("dsv3-ep32", 288), ("dsv3-ep64", 320), ("k2-ep32", 416), ("k2-ep64", 448)),
        *(("qwen3-ep16", 160), ("k3-ep64", 960), ("k3-ep128", 1024), ("k3-ep320", 1280)),
    ]
    assert SMALL.nodes == ("node000", "node000", "node001", "node001")
    with pytest.raises(InvalidSettings, match="17 slots, 4 ranks"):
        Shape("odd", 3, 12, 17, 4, 2)


def test_a_plan_is_judged_by_hand_checked_numbers() -> None:
    before = placement_from_ranks([[[0, 1], [2, 3], [0, 2], [1, 3]]], num_experts=4)
    after = placement_from_ranks([[[0, 1], [0, 3], [0, 2], [1, 3]]], num_experts=4)
    nodes = ("a", "a", "b", "b")
    sources = np.tile(np.array([30.0, 20, 10, 20]), (4, 1))[:, None, :]
    judged = judge(before, after, sources, nodes)
    assert judged.changes.valid
    assert (judged.changes.moves, judged.changes.inter_node_moves) == (1, 0)
    assert judged.changes.max_incoming == 1
    assert judged.changes.components == 1
    assert judged.balances.imbalance_even == pytest.approx(80 / 80)
    assert judged.balances.imbalance_shares == pytest.approx(1.0)
    # Away go half of expert 2, and one source of node b for the balance of expert 0, which takes
    # rank 0 to 60 instead of 40. To make up for it one source of node a sends expert 1 to rank 3,
    # and one of node b expert 3 to rank 1: the ranks compute 80, 90, 70 and 80.
    away = 20 + 30 + 20 + 20
    assert judged.changes.own_node == pytest.approx(1 - away / 320)
    assert judged.balances.imbalance_maps == pytest.approx(90 / 80)
    silent = np.zeros_like(sources)
    silent[:, 0, 2] = 10
    assert look_again(after, judged, silent, nodes).next_shares_fresh == pytest.approx(4.0)


def test_windows_of_a_file_come_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "counts.npz"
    np.savez(file, a=np.full((2, 3), 7), b=np.full((4, 2, 3), 1), c=np.full((2, 3), 5.0))
    assert [int(window[0, 0]) for window in counts_of_file(file)] == [7, 4, 5]
    np.savez(file, series=np.arange(24).reshape(4, 2, 3))
    assert [int(window[0, 0]) for window in counts_of_file(file)] == [0, 6, 12, 18]


def test_a_file_that_holds_no_counts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "counts.npz"
    np.savez(file, a=np.ones((2, 3)), b=np.ones((2, 4)))
    with pytest.raises(InvalidTable, match=r"different shapes.*a \[2, 3\], b \[2, 4\]"):
        counts_of_file(file)
    np.savez(file, a=np.full((2, 3), -1))
    with pytest.raises(InvalidTable, match="below 0"):
        counts_of_file(file)
    np.savez(file, a=np.array(["x"]))
    with pytest.raises(InvalidTable, match="expected counts"):
        counts_of_file(file)
    for wrong in (np.full((2, 3), 0.5), np.full((2, 3), 2**63, np.uint64)):
        np.savez(file, a=wrong)
        with pytest.raises(InvalidTable, match="expected whole tokens"):
            counts_of_file(file)
    np.savez(file, a=np.full((2, 3), 1j))
    with pytest.raises(InvalidTable, match="dtype complex128; expected counts"):
        counts_of_file(file)
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(InvalidTable, match="cannot be read"):
        counts_of_file(file)
    file.write_bytes(b"no archive")
    with pytest.raises(InvalidTable, match="cannot be read"):
        counts_of_file(file)
    with pytest.raises(InvalidTable, match="cannot be read"):
        counts_of_file(tmp_path / "none.npz")


def counts(folder: Path) -> Path:
    file = folder / "counts.npz"
    rng = np.random.default_rng(0)
    np.savez(file, rng.integers(1, 900, (3, 3, 64)))
    return file


def test_every_policy_that_fits_gets_a_row_per_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "build" / "rows.json"
    arguments = ["--counts", str(counts(tmp_path)), *FLAT, "--groups", "1", "--json", str(out)]
    assert main([*arguments, "--seeds", "0,1"]) == 0
    rows = json.loads(out.read_text())
    printed = capsys.readouterr()
    assert "hierarchical left out" in printed.err
    names = {row["policy"] for row in rows}
    assert {"static", "packing", "incremental", "random"} <= names
    assert "hierarchical" not in names
    assert len(rows) == len(names) * 2 * 3
    assert all(set(row) >= COLUMNS and row["valid"] for row in rows)
    assert all((row["next_even"] is None) == (row["window"] == 2) for row in rows)
    assert all(row["imbalance_shares"] <= row["imbalance_even"] + 1e-6 for row in rows)
    assert all(row["imbalance_shares"] <= row["imbalance_maps"] + 1e-6 for row in rows)
    assert all(row["moves"] == 0 for row in rows if row["policy"] == "static")
    assert all(row["moves"] > 0 for row in rows if row["policy"] == "random")
    assert printed.out.count("| counts |") == len(names)


def test_what_further_slots_buy_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--counts", str(counts(tmp_path)), *FLAT, "--advise"]) == 0
    heads, _, *lines = capsys.readouterr().out.splitlines()
    assert heads.startswith("| shape | scenario | slots | joins all | components |")
    cells = [line.split(" | ")[2:5] for line in lines]
    assert cells[0] == ["64", "no", "8.0"]
    assert cells[1] == ["71", "yes", "1.0"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--policy", "swifter"], "no policy is named 'swifter'"),
        (["--shape", "dsv4"], "there is no 'dsv4'; there are: dsv3-ep32"),
        (["--scenario", "calm"], "there is no 'calm'; there are: steady"),
        (["--windows", "0"], "0 windows; expected one or more"),
        (["--ranks", "7"], "288 slots, 7 ranks"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


DOUBLING_PEER = """
import torch


def rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_gpus):
    print("a peer may print")
    flat = torch.arange(num_replicas) % weight.shape[1]
    flat[1] = flat[0]
    flat[-1] = 1
    return flat.repeat(len(weight), 1), None, None
"""


@pytest.mark.processes
def test_a_public_planner_runs_in_its_own_process_and_what_it_doubles_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "eplb.py").write_text(DOUBLING_PEER)
    out, plot = tmp_path / "rows.json", tmp_path / "frontier.svg"
    given = ["--counts", str(counts(tmp_path)), *FLAT, "--policy", "static,swift"]
    peer = ["--peer", f"deepseek={tmp_path}", "--plot", str(plot)]
    assert main([*given, *peer, "--json", str(out)]) == 0
    rows = [row for row in json.loads(out.read_text()) if row["policy"] == "deepseek"]
    assert len(rows) == 3
    assert not any(row["valid"] for row in rows)
    assert all(row["imbalance_even"] >= 1 and row["imbalance_shares"] is None for row in rows)
    assert rows[0]["moves"] == 3
    assert [row["moves"] for row in rows[1:]] == [0, 0]
    printed = capsys.readouterr().out
    assert "public planners run: deepseek" in printed
    assert "3 INVALID" in printed
    drawn = ElementTree.fromstring(plot.read_text())
    labels = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"static", "swift", "deepseek", "moves per window"} <= set(labels)


@pytest.mark.processes
def test_a_peer_that_fails_is_told_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "eplb.py").write_text("raise RuntimeError('no such accelerator')")
    given = ["--counts", str(counts(tmp_path)), *FLAT, "--policy", "static"]
    assert main([*given, "--peer", f"deepseek={tmp_path}", "--json", str(tmp_path / "r")]) == 2
    assert "no such accelerator" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["deepseek", "omni=/tmp", "deepseek=/no/such/folder"])
def test_a_peer_that_is_not_there_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--peer", text]) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.slow
def test_the_first_plan_of_a_fresh_process_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first-plan", "--shape", "qwen3-ep16", "--policy", "connected"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("qwen3-ep16 connected: ")
    assert "to start and" in told


def test_a_file_without_a_single_token_is_told_of_by_empty_figures(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    np.savez(tmp_path / "silent.npz", counts=np.zeros((2, 3, 16)))
    rows = tmp_path / "rows.json"
    told = ["--counts", str(tmp_path / "silent.npz"), "--slots", "20", "--ranks", "4"]
    assert main([*told, "--nodes", "2", "--policy", "connected,packing", "--json", str(rows)]) == 0
    found = json.loads(rows.read_text())
    assert [row["valid"] for row in found] == [True] * 4
    assert {row["imbalance_even"] for row in found} == {None}
    assert not recwarn.list


def test_a_scenario_beside_a_counts_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--counts", str(tmp_path / "x.npz"), "--scenario", "drift"]) == 2
    assert "expected one of the two" in capsys.readouterr().err


def test_seeds_that_are_no_numbers_are_refused_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "0,x"])
    assert "'0,x' is no list of whole numbers" in capsys.readouterr().err
    assert main(["--seeds", "0,-1"]) == 2
    assert "a seed of -1; expected 0 or more" in capsys.readouterr().err
