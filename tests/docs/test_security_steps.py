"""The steps of docs/security.md, run as they stand, lead to a controller that is locked."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from eplb_service.cli.main import main
from tests.host.processes import ROOT, service

PAGE = ROOT / "docs" / "security.md"
BLOCK = re.compile(r"^ +```(sh|yaml)\n(.*?)^ +```", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    """Blocks under the steps, without their indent."""
    steps = PAGE.read_text().partition("## Certificates, step by step")[2].partition("\n## ")[0]
    found = [text for form, text in BLOCK.findall(steps) if form == kind]
    return [re.sub(r"^ {3}", "", text, flags=re.MULTILINE) for text in found]


@pytest.mark.processes
@pytest.mark.slow
def test_the_steps_lead_to_a_controller_that_knows_its_callers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in blocks("sh"):
        if text.startswith("openssl"):
            subprocess.run(["sh", "-ec", text], cwd=tmp_path, check=True, capture_output=True)
    (security,) = (yaml.safe_load(text)["security"] for text in blocks("yaml"))
    told = {name: str(tmp_path / file) for name, file in security.items()}
    config = tmp_path / "settings.json"
    where = {"host": "127.0.0.1", "port": 0, "metrics_port": 0}
    config.write_text(json.dumps({"server": where, "store": {"url": "memory:"}, "security": told}))
    (context,) = (text for text in blocks("sh") if text.startswith("eplbctl"))
    monkeypatch.setenv("EPLB_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.delenv("EPLB_ENDPOINT", raising=False)
    monkeypatch.chdir(tmp_path)
    with service(tmp_path / "log", "run", "--config", str(config)) as run:
        port = run.await_endpoint().rpartition(":")[2]
        for line in context.replace("50051", port).splitlines():
            assert main(line.split()[1:]) == 0, capsys.readouterr().err
        assert main(["status", "--endpoint", f"localhost:{port}", "--ca", "ca.pem"]) == 4
        variables = next(text for text in blocks("sh") if text.startswith("EPLB_AGENT"))
        agent = dict(word.split("=") for word in variables.split())
        assert {name for name in agent if name.startswith("EPLB_AGENT_TLS__")} == set(agent)
        assert all((tmp_path / file).exists() for file in agent.values())
        keys = ("--certificate", agent["EPLB_AGENT_TLS__CERTIFICATE"])
        keys = (*keys, "--key", agent["EPLB_AGENT_TLS__KEY"], "--ca", "ca.pem")
        assert main(["status", "--endpoint", f"localhost:{port}", *keys]) == 4
        assert "needs the role viewer" in capsys.readouterr().err
        assert "PRIVATE" not in run.said()
