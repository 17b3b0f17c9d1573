"""A variable that none of our programs knows is refused by name, by all of them."""

import pytest

from eplb_service.cli.contexts import CONTEXT_VARIABLE, FILE_VARIABLE
from eplb_service.cli.keys import INSECURE_VARIABLE, VARIABLES
from eplb_service.cli.main import main
from eplb_service.cli.options import ENDPOINT_VARIABLE
from eplb_service.domain import variables
from eplb_service.domain.errors import InvalidSettings
from eplb_service.settings import Settings, load_settings
from worker_agent.settings.settings import AgentSettings
from worker_agent.settings.vllm import VllmSettings

OF_A_SERVICE_CALLED_EPLB = {
    "EPLB_SERVICE_HOST": "10.0.0.1",
    "EPLB_SERVICE_PORT": "50051",
    "EPLB_SERVICE_PORT_GRPC": "50051",
    "EPLB_PORT": "tcp://10.0.0.1:50051",
    "EPLB_PORT_50051_TCP": "tcp://10.0.0.1:50051",
    "EPLB_PORT_50051_TCP_PROTO": "tcp",
    "EPLB_PORT_50051_TCP_PORT": "50051",
    "EPLB_PORT_50051_TCP_ADDR": "10.0.0.1",
    "EPLB_CONTROLLER_SERVICE_HOST": "10.0.0.1",
    "EPLB_AGENT_PORT_9464_TCP_ADDR": "10.0.0.1",
    "EPLB_AGENT_PORT": "tcp://10.0.0.1:9464",
    "EPLB_VLLM_SERVICE_HOST": "10.0.0.1",
}
OF_ALL = {
    "EPLB_ENDPOINT": "127.0.0.1:1",
    "EPLB_GATES__MIN_GAIN": "0.1",
    "EPLB_AGENT_ENDPOINT": "127.0.0.1:1",
    "EPLB_VLLM_STAGING_ROWS": "4",
}
MISSPELT = [
    ("EPLB_GATES_MIN_GAIN", "did you mean EPLB_GATES__MIN_GAIN?"),
    ("EPLB_ENDPIONT", "did you mean EPLB_ENDPOINT"),
    ("EPLB_AGNET_ENDPOINT", "EPLB_AGENT_"),
    ("EPLB_SERVER_PORT", "did you mean EPLB_SERVER__PORT?"),
    ("EPLB_CONFIG", "did you mean"),
    ("eplb_endpoint", "did you mean EPLB_ENDPOINT?"),
]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_ALL:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("name", "says"), MISSPELT)
def test_every_program_refuses_a_name_that_none_of_them_knows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    monkeypatch.setenv(name, "host:1")
    with pytest.raises(InvalidSettings) as service:
        load_settings()
    with pytest.raises(ValueError, match=name) as agent:
        AgentSettings(endpoint="127.0.0.1:1")
    with pytest.raises(ValueError, match=name) as plugin:
        VllmSettings()
    assert main(["--timeout", "1s", "status"]) == 2
    told = [*map(str, (service.value, agent.value, plugin.value)), capsys.readouterr().err]
    for text in told:
        assert name in text
        assert says in text


def test_the_agents_own_misspelt_endpoint_is_named_where_the_right_one_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPLB_AGENT_ENDPIONT", "host:1")
    with pytest.raises(ValueError, match=r"EPLB_AGENT_ENDPIONT.*did you mean EPLB_AGENT_ENDPOINT"):
        AgentSettings()  # pyright: ignore[reportCallIssue]  the environment names the endpoint


@pytest.mark.parametrize("told", [OF_A_SERVICE_CALLED_EPLB, OF_ALL], ids=["kubernetes", "all"])
def test_what_kubernetes_adds_and_what_others_are_told_is_let_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: dict[str, str]
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    load_settings()
    AgentSettings(endpoint="127.0.0.1:1")
    VllmSettings()
    assert main(["--timeout", "1s", "status"]) == 5
    assert "no variable" not in capsys.readouterr().err


def test_the_one_list_of_names_is_the_programs_own() -> None:
    assert set(variables.SECTIONS) == set(Settings.model_fields)
    assert set(variables.OF_CLIENTS) == {
        *VARIABLES.values(),
        INSECURE_VARIABLE,
        ENDPOINT_VARIABLE,
        CONTEXT_VARIABLE,
        FILE_VARIABLE,
    }
    assert set(variables.OF_AGENTS) == {
        f"EPLB_AGENT_{name.upper()}" for name in AgentSettings.model_fields
    }
    assert set(variables.OF_VLLM) == {
        f"EPLB_VLLM_{name.upper()}" for name in VllmSettings.model_fields
    }
