"""`eplb-service store`: what an operator sees, with a controller of flesh and blood."""

from pathlib import Path

import pytest

from eplb_service.host.main import main
from tests.host.processes import service, write_config

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_store_is_backed_up_beside_a_controller_and_restored_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, file = str(write_config(tmp_path)), str(tmp_path / "backup.db")
    with service(tmp_path / "log", "run", "--config", config) as run:
        run.await_endpoint()
        assert main(["store", "backup", file, "--config", config]) == 0
        done, deployments, audit = capsys.readouterr().out.splitlines()
        assert done == f"backed up to {file}"
        assert deployments == "deployments  none"
        assert audit.endswith("the chain holds")
        assert main(["store", "backup", file, "--config", config]) == 2
        assert "invalid_request: " in capsys.readouterr().err
        assert main(["store", "restore", file, "--force", "--config", config]) == 3
        assert "store_conflict: generation 1 leads on this store" in capsys.readouterr().err
        run.process.terminate()
        assert run.await_end() == 0
    assert main(["store", "restore", file, "--force", "--config", config]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"restored from {file}"
    with service(tmp_path / "again", "run", "--config", config) as run:
        run.await_endpoint()
