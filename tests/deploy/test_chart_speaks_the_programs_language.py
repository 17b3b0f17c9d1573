"""Every command, variable and setting that the chart renders is one that the program knows."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from eplb_service.cli.parser import build_parser
from eplb_service.host.main import NAME, NAMESPACE, service_parser
from eplb_service.server.health import ALIVE
from eplb_service.server.probe import probe_parser
from eplb_service.settings.settings import Settings
from eplb_service.settings.sources import load_settings
from tests.deploy.helm import MODES, Target, containers, named, of_kind, render
from tests.deploy.trees import Json
from worker_agent.settings.settings import AgentSettings

PARSERS = {
    "eplb-service": service_parser,
    "eplbctl": build_parser,
    "eplb-probe": probe_parser,
}
KUBES = ("1.20.2", "1.37.0")


def commands(one: Json) -> list[list[str]]:
    """The command lines of a container, its probes' too."""
    probes = (one.get(name, {}) for name in ("readinessProbe", "livenessProbe", "startupProbe"))
    lines = [one.get("command"), *(p.get("exec", {}).get("command") for p in probes)]
    return [[str(word) for word in line] for line in lines if line]


@pytest.mark.parametrize("kube", KUBES)
@pytest.mark.parametrize("mode", MODES)
def test_every_command_line_is_understood(mode: str, kube: str) -> None:
    lines = [
        line for one in containers(render(MODES[mode], Target(kube))) for line in commands(one)
    ]
    assert lines
    for program, *words in lines:
        PARSERS[program]().parse_args(words)


def test_the_names_by_default_are_the_programs_own() -> None:
    (keeper,) = containers([named(render({}), "Deployment", "eplb-keeper")])
    (line,) = commands(keeper)
    args = service_parser().parse_args(line[1:])
    assert (args.name, args.namespace) == (NAME, NAMESPACE)
    assert args.keep
    (cluster,) = of_kind(render({}), "RayCluster")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    offered = yaml.safe_load(yaml.safe_load(group["rayStartParams"]["resources"]))
    assert offered == {args.resource: 1}


@pytest.mark.parametrize("mode", MODES)
def test_the_settings_are_settings_and_reach_the_ports_that_are_open(
    mode: str, tmp_path: Path
) -> None:
    own: Json = {"controller": {"settings": {"budget": {"max_bytes": 68719476737}}}}
    found = render({**MODES[mode], **own})
    settings = settings_of(found, tmp_path)
    assert settings.budget.max_bytes == 68719476737
    assert settings.server.host == settings.server.metrics_host == "0.0.0.0"  # noqa: S104
    service = named(found, "Service", "eplb")
    assert [p["targetPort"] for p in service["spec"]["ports"]] == [
        settings.server.port,
        settings.server.metrics_port,
    ]


def settings_of(found: list[Json], folder: Path) -> Settings:
    """Read the rendered settings file as the program does."""
    file = folder / "settings.yaml"
    file.write_text(named(found, "ConfigMap", "eplb-settings")["data"]["settings.yaml"])
    return load_settings(file)


def test_agents_are_told_variables_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"EPLB_AGENT_DEPLOYMENT__MODEL": "kimi-k3", "EPLB_AGENT_GROUP_TIMEOUT_S": "60"}
    told = named(render({"agents": {"env": env}}), "ConfigMap", "eplb-agent")["data"]
    assert told.keys() == {*env, "EPLB_AGENT_ENDPOINT", "EPLB_AGENT_INSECURE"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    read: Any = AgentSettings()  # pyright: ignore[reportCallIssue] - from the environment
    assert read.endpoint == "eplb.moe.svc:50051"
    assert read.deployment.model == "kimi-k3"


def test_the_probe_of_life_asks_for_the_service_that_the_server_has() -> None:
    (one,) = containers(of_kind(render(MODES["deployment"]), "Deployment"))
    assert one["livenessProbe"]["grpc"]["service"] == ALIVE
