"""Maps in the formats of other engines mean the same placement, or are refused (F30, F46)."""

import json
from pathlib import Path

import numpy as np
import pytest

from eplb_service.controller.desk import MapRequest
from eplb_service.domain.map_file import format_map, parse_map, placement_of
from eplb_service.domain.placement import placement_from_ranks
from tests.cli.conftest import Ctl
from tests.server.desks import Operators

RANKS = [[[0, 1], [2, 3]], [[3, 2], [1, 0]], [[1, 3], [0, 2]]]
"""[L][N][S] of a model whose first layer is dense: MoE layers 0 to 2 are its layers 1 to 3."""
ROWS = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]]
MODEL_LAYERS = (1, 2, 3)
WANTED = placement_from_ranks(RANKS, num_experts=4)


def written(folder: Path, form: str) -> Path:
    match form:
        case "sglang":
            text = json.dumps({"physical_to_logical_map": [[0, 1, 2, 3], *ROWS]})
        case "tensorrt-llm":
            layers = "".join(f"  {at}: {row}\n" for at, row in zip(MODEL_LAYERS, ROWS, strict=True))
            text = f"num_slots: 4\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n{layers}"
        case "phy2log":
            text = json.dumps(ROWS)
        case _:
            text = format_map(WANTED, range(3))
    path = folder / f"{form}.map"
    path.write_text(text)
    return path


@pytest.mark.parametrize("form", ["sglang", "tensorrt-llm", "phy2log", "vllm-ascend"])
def test_f30_however_layers_are_numbered_the_placement_is_the_same(
    ctl: Ctl, tmp_path: Path, form: str
) -> None:
    out = tmp_path / "out.json"
    words = ("--to", "vllm-ascend", "--ranks", "2")
    ran = ctl("map", "convert", str(written(tmp_path, form)), str(out), *words)
    assert (ran.code, ran.err) == (0, "")
    found = placement_of(parse_map(out.read_text()), model_layers=MODEL_LAYERS, num_experts=4)
    assert found.digest() == WANTED.digest()


@pytest.mark.parametrize("form", ["sglang", "tensorrt-llm", "phy2log", "vllm-ascend"])
def test_a_map_survives_the_way_there_and_back(ctl: Ctl, tmp_path: Path, form: str) -> None:
    first = tmp_path / "first.json"
    first.write_text(format_map(WANTED, range(3)))
    there, back = tmp_path / "there", tmp_path / "back.json"
    assert ctl("map", "convert", str(first), str(there), "--to", form).code == 0
    words = ("--to", "vllm-ascend", "--from", form, "--ranks", "2")
    assert ctl("map", "convert", str(there), str(back), *words).code == 0
    assert back.read_text() == first.read_text()


def test_sglang_gets_rows_for_dense_layers_too(ctl: Ctl, tmp_path: Path) -> None:
    first, out = tmp_path / "first.json", tmp_path / "out.json"
    first.write_text(format_map(WANTED, MODEL_LAYERS))
    words = ("--to", "sglang", "--hidden-layers", "5")
    assert ctl("map", "convert", str(first), str(out), *words).code == 0
    rows = json.loads(out.read_text())["physical_to_logical_map"]
    assert (len(rows), rows[1:4]) == (5, ROWS)


def test_a_numpy_array_is_read(ctl: Ctl, tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array(ROWS))
    ran = ctl("map", "validate", str(tmp_path / "m.npy"), "--ranks", "2")
    assert (ran.code, ran.err) == (0, "")
    assert "is sound: 3 layers, 4 experts in 4 slots on 2 ranks of 2" in ran.out


def test_import_sends_what_the_controller_reads(
    ctl: Ctl, operators: Operators, tmp_path: Path
) -> None:
    ctl("import", str(written(tmp_path, "tensorrt-llm")), "--ranks", "2")
    _, _, request = operators.asked[0]
    assert isinstance(request, MapRequest)
    assert parse_map(request.text).layer_ids == MODEL_LAYERS


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (b"\x80\x02}q\x00.", (), "PyTorch's .pt files are not opened"),
        (b'{"physical_to_logical_map": [[0, 1], [0]]}', ("--ranks", "1"), "layers have [1, 2]"),
        (b'{"physical_to_logical_map": [[0, 1]]}', (), "say how many there are with --ranks N"),
        (b"[[0, 1, 2]]", ("--ranks", "2"), "3 slots do not divide into 2 ranks"),
        (b"[[0, 1]]", ("--ranks", "0"), "2 slots do not divide into 0 ranks"),
        (b"[[0, true]]", ("--ranks", "1"), "row 0 holds True; expected expert ids"),
        (b"[[0, 1.5]]", ("--ranks", "1"), "row 0 holds 1.5; expected expert ids"),
        (b"[]", ("--ranks", "1"), "that is not empty"),
        (b'{"initial_global_assignments": {}}', ("--ranks", "1"), "no object of layers"),
        (b"initial_global_assignments: [1", ("--ranks", "1"), "not YAML"),
        (b"num_slots: 3\ninitial_global_assignments: {3: [0, 1]}", ("--ranks", "1"), "layer 3 has"),
        (b"initial_global_assignments: {x: [0, 1]}", ("--ranks", "1"), "'x' is no layer"),
        (b"[[0, 1]]", ("--from", "sglang", "--ranks", "1"), "looks like phy2log, and sglang was"),
        (b"\x93NUMPY\x01", ("--ranks", "1"), "no numpy array"),
        (b"PK\x03\x04rest", ("--ranks", "1"), "no numpy array"),
        (b"[" * 100_000, ("--ranks", "1"), "nested too deep"),
        (b"initial_global_assignments: {3: [0], 3: [1]}", ("--ranks", "1"), "3 occurs twice"),
        (
            b"num_slots: 1\ninitial_global_assignments:\n  3: [0]\n  3: [1]",
            ("--ranks", "1"),
            "line 4",
        ),
        (
            b'{"physical_to_logical_map": [], "physical_to_logical_map": [[0]]}',
            ("--ranks", "1"),
            "than once",
        ),
        (b"[[" + b"9" * 5000 + b"]]", ("--ranks", "1"), "thousands of digits"),
    ],
)
def test_a_file_that_is_no_map_is_refused_and_nothing_is_written(
    ctl: Ctl, tmp_path: Path, content: bytes, words: tuple[str, ...], says: str
) -> None:
    file, out = tmp_path / "bad", tmp_path / "out"
    file.write_bytes(content)
    ran = ctl("map", "convert", str(file), str(out), "--to", "vllm-ascend", *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert not out.exists()


def test_what_a_format_cannot_say_is_refused(ctl: Ctl, tmp_path: Path) -> None:
    uneven, out = tmp_path / "uneven.json", tmp_path / "out"
    uneven.write_text(format_map(placement_from_ranks([[[0, 1], [2]]], num_experts=3), (0,)))
    ran = ctl("map", "convert", str(uneven), str(out), "--to", "sglang")
    assert (ran.code, out.exists()) == (2, False)
    assert "ranks of unequal slots, which sglang cannot say; vllm-ascend can" in ran.err


@pytest.mark.parametrize("verb", ["validate", "convert", "import", "simulate", "diff"])
def test_ranks_that_the_file_contradicts_are_refused(ctl: Ctl, tmp_path: Path, verb: str) -> None:
    file, out = str(written(tmp_path, "vllm-ascend")), tmp_path / "out"
    np.save(tmp_path / "loads.npy", np.ones((3, 4)))
    words = {
        "validate": ("validate", file),
        "convert": ("map", "convert", file, str(out), "--to", "sglang"),
        "import": ("import", file),
        "simulate": ("simulate", str(tmp_path / "loads.npy"), "--map", file),
        "diff": ("diff", file, file),
    }[verb]
    ran = ctl(*words, "--ranks", "3")
    assert (ran.code, ran.out, out.exists()) == (2, "", False)
    assert "the file has 2 ranks, and --ranks says 3" in ran.err


def test_no_experts_at_all_are_refused(ctl: Ctl, tmp_path: Path) -> None:
    ran = ctl("validate", str(written(tmp_path, "vllm-ascend")), "--experts", "0")
    assert (ran.code, ran.out) == (2, "")
    assert "--experts" in ran.err
