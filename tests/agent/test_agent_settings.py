"""The agent's settings come from EPLB_AGENT_* and are refused when impossible."""

import pytest
from pydantic import ValidationError

from worker_agent.settings.settings import AgentSettings


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPLB_AGENT_ENDPOINT", "controller:7420")
    monkeypatch.setenv("EPLB_AGENT_AGREE_EVERY", "8")
    monkeypatch.setenv("EPLB_AGENT_DEPLOYMENT__MODEL", "kimi-k3")
    monkeypatch.setenv("EPLB_AGENT_PACE__IDLE_AFTER_S", "2.5")
    settings = AgentSettings()  # pyright: ignore[reportCallIssue] - from the environment
    assert (settings.endpoint, settings.agree_every) == ("controller:7420", 8)
    assert settings.deployment.identity().name == "kimi-k3/0/serve/0/0"
    assert settings.pace.idle_after_s == 2.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": ""},
        {"endpoint": "c:1", "agree_every": 0},
        {"endpoint": "c:1", "wait_for_welcome_s": -1},
        {"endpoint": "c:1", "pace": {"keepalive_s": 0.5}},
        {"endpoint": "c:1", "deployment": {"role": "cook"}},
        {"endpoint": "c:1", "agre_every": 4},
        {"endpoint": "c:1", "pace": {"first_backoff_s": 2, "max_backoff_s": 1}},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AgentSettings.model_validate(wrong)


@pytest.mark.parametrize("name", ["EPLB_AGENT_AGRE_EVERY", "eplb_agent_pase__poll_s"])
def test_a_misspelt_variable_is_refused_by_name_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "8")
    with pytest.raises(ValidationError, match=name):
        AgentSettings(endpoint="controller:7420")
