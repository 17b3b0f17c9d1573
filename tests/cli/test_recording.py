"""What is recorded from a controller can be played again, whole, however the recording ended."""

import io
import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eplb_service.cli import record
from eplb_service.cli.recordings import (
    Recording,
    Window,
    decode_recording,
    encode_recording,
    is_recording,
)
from eplb_service.controller.views import HeatView
from eplb_service.domain.errors import InsufficientSamples, InvalidTable, NotLeader
from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from tests.cli.conftest import Ctl
from tests.cli.recorders import recorder
from tests.server import views
from tests.server.desks import Operators

HEATS = ([80, 10, 20, 10], [10, 80, 20, 10], [10, 20, 10, 80])
"""[T][E] of one layer."""
SERVED = placement_from_ranks([[[1, 0, 2], [3, 2, 1]]], num_experts=4)


def a_heat(row: list[int]) -> HeatView:
    return replace(
        views.a_heat(),
        layers=(0,),
        model_layers=(3,),
        tokens=np.array([row], dtype=np.float64),
        rank_load=np.ones((1, 2)),
        imbalance=np.ones(1),
    )


def read(path: Path) -> Recording:
    with np.load(path) as stored:
        return decode_recording(dict(stored))


def serve(operators: Operators, *heats: HeatView | Exception) -> None:
    operators.heats = list(heats)
    operators.map_text = format_map(SERVED, (3,))


def test_windows_are_recorded_once_each_and_played_again(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    first, second, third = map(a_heat, HEATS)
    serve(operators, first, first, second, third, third)
    path = tmp_path / "r.npz"
    ran = ctl("record", "start", str(path), "--every", "0.1s", "--for", "1s")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"3 windows of m/i/serve/0/g recorded to {path} (1.0s are over)\n"
    found = read(path)
    assert found.tokens[:, 0].tolist() == list(HEATS)
    assert (found.model_layers, [w.num_steps for w in found.windows]) == ((3,), [600] * 3)
    assert not list(tmp_path.glob("*.recording"))

    tree = json.loads(ctl("replay", str(path), "--policy", "static,packing", "-o", "json").out)
    static, packing = tree["played"]
    assert (static["redundancy"], static["moves"]) == (2, 0)
    assert all(turn["next"] == turn["left_alone"] for turn in static["turns"])
    assert [turn["planned"]["even"] for turn in packing["turns"]] == pytest.approx([1.0, 1.0])
    assert packing["moves"] > 0
    shown = ctl("replay", str(path), "--policy", "static,packing", "--expert-bytes", "10").out
    assert "(recording)   3 windows   1 layer of 4 experts   360 tokens" in shown

    [start] = json.loads(ctl("simulate", str(path), "--policy", "static", "-o", "json").out)[
        "outcomes"
    ]
    assert (start["num_ranks"], start["slots_per_rank"]) == (2, 3)


def test_it_waits_for_load_and_goes_on_through_a_failover(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    none_yet = InsufficientSamples("no step was counted yet")
    heats = map(a_heat, HEATS[:2])
    serve(operators, none_yet, next(heats), NotLeader("it stands by"), next(heats))
    ran = ctl("record", "start", str(tmp_path / "r.npz"), "--every", "0.1s", "--for", "1s")
    assert (ran.code, "2 windows" in ran.out) == (0, True)
    assert "2 looks found nothing" in ran.out
    assert "nothing to record yet: no step was counted yet" in ran.err


def test_without_any_load_no_file_is_written(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    serve(operators, a_heat([0, 0, 0, 0]))
    ran = ctl("record", "start", str(tmp_path / "r.npz"), "--every", "0.1s", "--for", "0.2s")
    assert (ran.code, ran.out) == (1, "")
    assert not list(tmp_path.glob("r.npz*"))


def test_a_recording_has_an_end(
    ctl: Ctl, operators: Operators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MOST_TOKEN_BYTES", 2 * 4 * 8)
    serve(operators, *map(a_heat, HEATS))
    ran = ctl("record", "start", str(tmp_path / "r.npz"), "--every", "0.1s")
    assert (ran.code, "2 windows" in ran.out, "is the most" in ran.out) == (0, True, True)
    assert len(read(tmp_path / "r.npz").windows) == 2


def test_another_deployment_under_the_same_name_ends_it(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    serve(operators, a_heat(HEATS[0]), a_heat([1, 2, 3]))
    ran = ctl("record", "start", str(tmp_path / "r.npz"), "--every", "0.1s")
    assert (ran.code, "[1, 3] layers and experts now" in ran.out) == (0, True)


def test_a_controller_that_is_not_there_is_said_at_once(ctl: Ctl, tmp_path: Path) -> None:
    ran = ctl("record", "start", str(tmp_path / "r.npz"), "--endpoint", "127.0.0.1:1")
    assert (ran.code, "no controller answers" in ran.err) == (5, True)


def test_another_terminal_stops_it_and_nobody_else_records_there(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    serve(operators, *map(a_heat, HEATS))
    path = tmp_path / "r.npz"
    with recorder(path) as process:
        second = ctl("record", "start", str(path))
        assert (second.code, "is being recorded to" in second.err) == (3, True)
        stopped = ctl("record", "stop", str(path))
        assert (stopped.code, stopped.out) == (0, f"the recording to {path} is over\n")
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, "(stopped)" in out) == (0, True)
    assert len(read(path).windows) >= 1
    again = ctl("record", "stop", str(path))
    assert (again.code, "nobody records to" in again.err) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_file_whole(
    ctl: Ctl, operators: Operators, tmp_path: Path, number: signal.Signals
) -> None:
    del ctl
    serve(operators, a_heat(HEATS[0]))
    path = tmp_path / "r.npz"
    with recorder(path) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err, "1 window of" in out) == (0, "", True)
    assert len(read(path).windows) == 1


def test_a_recorder_that_was_killed_leaves_a_whole_file_and_no_lock(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    serve(operators, a_heat(HEATS[0]))
    path = tmp_path / "r.npz"
    with recorder(path) as process:
        process.kill()
        process.wait()
    assert len(read(path).windows) == 1
    assert "nobody records" in ctl("record", "stop", str(path)).err
    assert not list(tmp_path.glob("*.recording"))


def arrays(**changes: object) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    windows = tuple(
        Window(1e9 + nth, 600, 1.0, np.array([row], dtype=np.float64))
        for nth, row in enumerate(HEATS)
    )
    data = encode_recording(Recording("m/i/serve/0/g", format_map(SERVED, (3,)), (3,), windows))
    with np.load(io.BytesIO(data)) as stored:
        found = dict(stored)
    found.update({name: np.array(value) for name, value in changes.items()})
    return found


def test_the_format_keeps_every_figure() -> None:
    found = decode_recording(arrays())
    assert is_recording(arrays())
    assert found.placement == format_map(SERVED, (3,))
    assert [w.at_s for w in found.windows] == [1e9, 1e9 + 1, 1e9 + 2]
    assert found.tokens[:, 0].tolist() == list(HEATS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2; this eplbctl reads 1"),
        ({"tokens": np.ones((3, 4))}, r"float64 \[3, 4\]"),
        ({"at_s": [1.0]}, "at_s float64"),
        ({"coverage": [1.0, np.nan, 1.0]}, "coverage float64"),
        ({"model_layers": [1, 2]}, "expected 1 finite numbers"),
    ],
)
def test_what_the_format_does_not_allow_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidTable, match=said):
        decode_recording(arrays(**changes))
    missing = arrays()
    del missing["coverage"]
    with pytest.raises(InvalidTable, match="without coverage"):
        decode_recording(missing)


def test_one_window_is_no_replay(ctl: Ctl, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones((2, 4)))
    ran = ctl("replay", str(tmp_path / "one.npy"), "--ranks", "2")
    assert (ran.code, "a replay needs two" in ran.err) == (2, True)


@pytest.mark.slow
def test_a_replay_passes_over_windows_without_load(ctl: Ctl, tmp_path: Path) -> None:
    loads = np.random.default_rng(0).integers(1, 90, (4, 2, 8))
    loads[2] = 0
    np.savez(tmp_path / "gap.npz", counts=loads)
    ran = ctl("replay", str(tmp_path / "gap.npz"), "--ranks", "4", "--redundancy", "4")
    assert ran.code == 0
    rows = [line for line in ran.out.splitlines() if " incremental " in line]
    assert rows
    assert all("no data" not in row for row in rows)
