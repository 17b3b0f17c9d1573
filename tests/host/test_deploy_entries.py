"""The entries of deploy/ray, used on a real Ray head by the very lines of deploy/README.md."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from eplb_service.settings.settings import Settings
from eplb_service.settings.sources import read_file
from tests.architecture.sources import ROOT
from tests.host.head_node import Answer

RAY = ROOT / "deploy" / "ray"
WALK_S = 400.0
LOCAL = {"host": "127.0.0.1", "metrics_host": "127.0.0.1"}


def documented(start: str) -> str:
    """The one line of deploy/README.md that begins so."""
    lines = re.findall(rf"^{re.escape(start)} .*$", (ROOT / "deploy/README.md").read_text(), re.M)
    assert len(lines) == 1
    return lines[0]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Short, since Ray puts sockets into it."""
    with tempfile.TemporaryDirectory(prefix="eplb-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def answers(folder: Path) -> Mapping[str, Answer]:
    """What the entries answered; settings and configuration as shipped, but on the loopback."""
    settings = yaml.safe_load((RAY / "settings.yaml").read_text())
    config = yaml.safe_load((RAY / "serve_config.yaml").read_text())
    for tree in (settings, config["applications"][0]["args"]["settings"]):
        tree["server"].update(LOCAL)
        tree["store"] = {"url": f"sqlite:///{folder}/eplb.db"}
    config["http_options"]["host"] = "127.0.0.1"
    settings_file, config_file = folder / "settings.yaml", folder / "serve_config.yaml"
    settings_file.write_text(yaml.safe_dump(settings))
    config_file.write_text(yaml.safe_dump(config))
    job = documented("ray job submit").replace("/etc/eplb/settings.yaml", str(settings_file))
    serve = documented("serve deploy").replace("deploy/ray/serve_config.yaml", str(config_file))
    lo_only = [str(ROOT / "deploy" / "lo-only"), sys.executable, "-m", "tests.host.head_node"]
    done = subprocess.run(
        [*lo_only, str(folder), job, serve],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith(("EPLB_", "RAY_"))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WALK_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return {name: Answer(**answer) for name, answer in told.items()}


def test_the_shipped_settings_are_settings() -> None:
    of_job = Settings.model_validate(read_file(RAY / "settings.yaml"))
    config = yaml.safe_load((RAY / "serve_config.yaml").read_text())
    assert of_job == Settings.model_validate(config["applications"][0]["args"]["settings"])


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(WALK_S + 30)
class TestOnARayHead:
    def test_the_job_leaves_a_controller_that_leads(self, answers: Mapping[str, Answer]) -> None:
        job = answers["job"]
        assert job.code == 0, job.text + job.complaint
        assert "controller   127.0.0.1:50051" in job.text
        status = answers["status after job"]
        assert status.code == 0, status.complaint

    def test_the_job_submitted_again_finds_the_controller(
        self, answers: Mapping[str, Answer]
    ) -> None:
        assert answers["job again"].code == 0, answers["job again"].complaint
        assert answers["down after job"].text.endswith("ended actor eplb-controller\n")

    def test_serve_creates_the_actor_and_tells_where_it_is(
        self, answers: Mapping[str, Answer]
    ) -> None:
        assert answers["serve"].code == 0, answers["serve"].complaint
        page = answers["page"]
        assert page.code == 200, page.text
        assert json.loads(page.text) == {
            "name": "eplb-controller",
            "namespace": "eplb",
            "is_ready": True,
            "endpoint": "127.0.0.1:50051",
            "metrics_url": "http://127.0.0.1:9464/metrics",
        }
        assert answers["status after serve"].code == 0, answers["status after serve"].complaint

    def test_a_request_does_not_raise_an_actor_that_was_ended(
        self, answers: Mapping[str, Answer]
    ) -> None:
        assert answers["down after serve"].text.endswith("ended actor eplb-controller\n")
        page = answers["page without actor"]
        assert page.code == 503, page.text
        assert json.loads(page.text)["is_ready"] is False
