"""Doctor says what is wrong and what to do; what it packs for support holds nothing else."""

import json
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from eplb_service.cli.checks import Level, clock
from eplb_service.controller.views import StatusView
from eplb_service.domain.errors import InsufficientSamples
from eplb_service.domain.metric_names import BUILD_INFO
from eplb_service.metrics.exposition import MetricsServer
from eplb_service.metrics.recorder import PrometheusRecorder
from eplb_service.protocol.messages import HaltStatus
from tests.cli.conftest import Ctl
from tests.server import views
from tests.server.desks import Operators


@pytest.fixture
def metrics() -> Iterator[str]:
    """Where the metrics of a controller of this version are."""
    recorder = PrometheusRecorder()
    recorder.set(BUILD_INFO, (version("eplb-control-plane"),), 1)
    server = MetricsServer(recorder, host="127.0.0.1", port=0)
    yield f"127.0.0.1:{server.port}"
    server.close()


def a_well_status() -> StatusView:
    busy = views.a_status()
    ranks = tuple(replace(rank, is_connected=True, epoch=busy.epoch) for rank in busy.ranks)
    operation = replace(
        busy.operation,
        halt=HaltStatus(2, is_active=False, reason="over"),
        freeze=None,
        planning=replace(busy.operation.planning, num_failed=0),
    )
    window = replace(busy.window, coverage=1.0, rejected_reports=0)
    return replace(busy, ranks=ranks, operation=operation, window=window)


def test_all_is_well(ctl: Ctl, operators: Operators, metrics: str) -> None:
    operators.statuses = (a_well_status(),)
    ran = ctl("doctor", "--metrics", metrics, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    tree = json.loads(ran.out)
    assert tree["is_well"]
    assert {finding["level"] for finding in tree["findings"]} == {"ok"}
    looked_at = [finding["what"] for finding in tree["findings"]]
    assert looked_at[:4] == ["connection", "metrics", "version", "clock"]


@pytest.mark.parametrize("age_s", [float("inf"), 0.4, 30.0])
def test_a_window_that_a_cutover_emptied_is_no_fault_for_a_minute(
    ctl: Ctl, operators: Operators, metrics: str, age_s: float
) -> None:
    well = a_well_status()
    empty = replace(well.window, num_steps=0, coverage=0.0, age_s=age_s)
    operators.statuses = (replace(well, window=empty, settled_age_s=12.0),)
    ran = ctl("doctor", "--metrics", metrics)
    assert (ran.code, ran.err) == (0, "")

    assert "counting began anew at the cutover 12" in ran.out
    operators.statuses = (replace(well, window=empty, settled_age_s=75.0),)
    ran = ctl("doctor", "--metrics", metrics)
    assert ran.code == 1
    assert "find ranks that do not report" in ran.out


def test_what_is_wrong_is_said_with_what_to_do(
    ctl: Ctl, operators: Operators, metrics: str
) -> None:
    operators.statuses = (views.a_status(),)
    ran = ctl("doctor", "--metrics", metrics)
    assert (ran.code, ran.err) == (1, "failed: 5 things wrong; the list says what to do\n")
    for words in (
        "1 of 2 away: 1 on node-b",
        "-> look at the agents' logs there",
        "coverage 0.50",
        "3 reports refused",
        "halt 2 stands: slot digest",
        "`eplbctl resume 2`",
        "by ada: audit",
        "`eplbctl unfreeze` lifts it",
        "1 plan could not be drawn; last: policy raised",
    ):
        assert words in ran.out


def test_ranks_apart_are_named(ctl: Ctl, operators: Operators, metrics: str) -> None:
    well = a_well_status()
    ranks = (well.ranks[0], replace(well.ranks[1], epoch=well.epoch - 1))
    operators.statuses = (replace(well, ranks=ranks),)
    ran = ctl("doctor", "--metrics", metrics)
    assert ran.code == 1
    assert "1 rank not at epoch 41: rank 1 at 40" in ran.out
    assert ran.err == "failed: 1 thing wrong; the list says what to do\n"


def test_an_idle_group_and_a_freeze_are_no_faults(
    ctl: Ctl, operators: Operators, metrics: str
) -> None:
    well = a_well_status()
    operation = replace(well.operation, is_idle=True, freeze=views.a_status().operation.freeze)
    window = replace(well.window, num_steps=0, coverage=0.0)
    operators.statuses = (replace(well, operation=operation, window=window),)
    ran = ctl("doctor", "--metrics", metrics)
    assert ran.code == 0
    assert ran.out.count("note") == 2


@pytest.mark.parametrize("apart_s", [-3600.0, 3600.0])
def test_clocks_apart_are_wrong(apart_s: float) -> None:
    now = time.time()
    found = clock(now + apart_s, now)
    assert (found.level, "1h00m" in found.text) == (Level.WRONG, True)
    assert clock(now + 1, now).level is Level.OK


def test_without_a_controller_it_says_so_and_goes_on(
    ctl: Ctl, metrics: str, tmp_path: Path
) -> None:
    bundle = tmp_path / "b.tar.gz"
    words = ("--endpoint", "127.0.0.1:1", "--metrics", metrics, "--bundle", str(bundle))
    ran = ctl("doctor", *words)
    assert ran.code == 1
    assert "no controller answers at 127.0.0.1:1" in ran.out
    assert bundle.exists()


def test_metrics_that_do_not_answer_are_wrong(ctl: Ctl, operators: Operators) -> None:
    operators.statuses = (a_well_status(),)
    ran = ctl("doctor", "--metrics", "127.0.0.1:1")
    assert (ran.code, "http://127.0.0.1:1/metrics does not answer" in ran.out) == (1, True)
    assert "--metrics HOST:PORT" in ran.out


def test_no_deployment_is_wrong(ctl: Ctl, operators: Operators, metrics: str) -> None:
    operators.statuses = ()
    ran = ctl("doctor", "--metrics", metrics)
    assert (ran.code, "none is registered" in ran.out) == (1, True)


def test_the_bundle_holds_answers_and_no_secrets(
    ctl: Ctl,
    operators: Operators,
    metrics: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "sesame")
    operators.statuses = (a_well_status(),)
    path = tmp_path / "b.tar.gz"
    assert ctl("doctor", "--metrics", metrics, "--bundle", str(path)).code == 0
    with tarfile.open(path) as packed:
        found = {
            member.name.removeprefix("eplb-bundle/"): content.read().decode()
            for member in packed
            if (content := packed.extractfile(member)) is not None
        }
    own = [f"m_i_serve_0_g/{name}.json" for name in ("config", "heat", "history")]
    assert sorted(found) == ["doctor.json", *own, "metrics.txt", "status.json"]
    assert json.loads(found["status.json"])[0]["epoch"] == 41
    assert np.array(json.loads(found[own[1]])["tokens"]).shape == (2, 3)
    assert "eplb_build_info" in found["metrics.txt"]
    assert not any("sesame" in text for text in found.values())


def test_what_cannot_be_asked_is_packed_as_its_reason(
    ctl: Ctl, operators: Operators, metrics: str, tmp_path: Path
) -> None:
    operators.statuses = (a_well_status(),)
    operators.heats = [InsufficientSamples("no step was counted yet")]
    path = tmp_path / "b.tar.gz"
    assert ctl("doctor", "--metrics", metrics, "--bundle", str(path)).code == 0
    with tarfile.open(path) as packed:
        content = packed.extractfile("eplb-bundle/m_i_serve_0_g/heat.failed.txt")
        assert content is not None
        assert content.read() == b"no step was counted yet\n"


def test_a_policy_is_a_setting(ctl: Ctl, operators: Operators) -> None:
    ran = ctl("policy", "set", "connected", "--reason", "shares are on")
    assert (ran.code, ran.err) == (0, "")
    assert operators.asked[0][0] == "set_config"
    assert operators.asked[0][2] == {"planning.policy": '"connected"'}


def test_validate_is_map_validate(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("[[0, 1, 2, 3]]")
    before = path.stat().st_mtime_ns
    short, long = (
        ctl(*words, str(path), "--ranks", "2") for words in (("validate",), ("map", "validate"))
    )
    assert (short, short.code) == (long, 0)
    assert (path.read_text(), path.stat().st_mtime_ns) == ("[[0, 1, 2, 3]]", before)
