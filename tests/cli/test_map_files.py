"""`eplbctl map validate` reads, judges by the rules, and never writes (F45)."""

import json
from pathlib import Path

import pytest

from eplb_service.domain.map_file import format_map
from eplb_service.domain.placement import placement_from_ranks
from tests.cli.conftest import Ctl

SOUND = placement_from_ranks([[[0, 1, 2], [3, 0, 1]], [[3, 2, 1], [0, 1, 3]]], num_experts=4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "m.json"
    file.write_text(format_map(SOUND, (3, 7)))
    return file


def test_a_sound_file_is_described_and_untouched(ctl: Ctl, file: Path) -> None:
    before = (file.read_bytes(), file.stat().st_mtime_ns)
    file.chmod(0o444)
    for _ in range(2):
        ran = ctl("map", "validate", str(file))
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == (f"{file} is sound: 2 layers, 4 experts in 6 slots on 2 ranks of 3\n")
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    assert [path.name for path in file.parent.iterdir()] == ["m.json"]


def test_every_broken_rule_is_listed_by_the_files_own_layer(ctl: Ctl, file: Path) -> None:
    broken = placement_from_ranks([[[0, 1, 2], [3, 0, 0]], [[2, 2, 1], [0, 1, 3]]], num_experts=4)
    file.write_text(format_map(broken, (3, 7)))
    ran = ctl("map", "validate", str(file), "--experts", "4")
    assert ran.code == 2
    assert "    3   replicas_are_on_different_ranks" in ran.out
    assert "    7   replicas_are_on_different_ranks" in ran.out
    assert "not sound in 2 places; it is untouched" in ran.err
    facts = json.loads(ctl("map", "validate", str(file), "-o", "json").out)
    assert (facts["is_sound"], facts["layers"], len(facts["violations"])) == (False, [3, 7], 2)


def test_an_expert_that_has_no_slot_is_seen_when_their_number_is_given(
    ctl: Ctl, file: Path
) -> None:
    assert ctl("map", "validate", str(file)).code == 0
    ran = ctl("map", "validate", str(file), "--experts", "5")
    assert ran.code == 2
    assert "expert 4 is missing: no slot" in ran.out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("3", "the file is int; expected an object"),
        ("[]", "expected an array [layers, slots] that is not empty"),
        ('{"moe_layer_count": 2, "layer_list": []}', "moe_layer_count is 2"),
    ],
)
def test_a_file_that_is_no_map_is_refused_by_name(
    ctl: Ctl, file: Path, text: str, says: str
) -> None:
    file.write_text(text)
    ran = ctl("map", "validate", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"invalid: {file}: ")
    assert says in ran.err


def test_more_experts_than_slots_are_refused_before_anything_is_made_for_them(
    ctl: Ctl, file: Path
) -> None:
    ran = ctl("map", "validate", str(file), "--experts", "9999999999")
    assert ran.code == 2
    assert "do not fit 6 slots" in ran.err
    file.write_text(format_map(SOUND, (3, 7)).replace(f"{' ' * 20}3", f"{' ' * 20}2000000000"))
    assert "2000000000" in file.read_text()
    assert ctl("map", "validate", str(file)).code == 2


def test_no_controller_is_needed(ctl: Ctl, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPLB_ENDPOINT", "127.0.0.1:1")
    assert ctl("map", "validate", str(file)).code == 0
