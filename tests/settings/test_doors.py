"""No door is open to strangers by mistake."""

import pytest

from eplb_service.domain.errors import InvalidSettings
from eplb_service.settings.doors import has_page, has_reflection, require_locked_doors
from eplb_service.settings.settings import Settings
from eplb_service.settings.sources import load_settings

TLS = {"certificate": "/c", "key": "/k"}
ANYWHERE = "0.0.0.0"  # noqa: S104 -- nothing is bound


def settings(host: str, **security: object) -> Settings:
    return Settings.model_validate({"server": {"host": host}, "security": security})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_this_machine_nothing_is_asked(host: str) -> None:
    require_locked_doors(settings(host))


@pytest.mark.parametrize("host", [ANYWHERE, "::", "10.0.0.3", "node3"])
@pytest.mark.parametrize(
    ("security", "says"),
    [
        ({}, "TLS is off .* and nobody is asked who calls"),
        (TLS, "but nobody is asked who calls"),
        ({"tokens": "/t"}, "but TLS is off"),
    ],
    ids=["open", "no identity", "no tls"],
)
def test_other_machines_find_no_open_door(
    host: str, security: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidSettings, match=says):
        require_locked_doors(settings(host, **security))
    require_locked_doors(settings(host, **security, insecure=True))


@pytest.mark.parametrize("who", [{"client_ca": "/a"}, {"tokens": "/t"}], ids=str)
def test_a_locked_door_may_be_anywhere(who: dict[str, object]) -> None:
    require_locked_doors(settings(ANYWHERE, **TLS, **who))


def test_the_command_refuses_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPLB_SERVER__HOST", ANYWHERE)
    with pytest.raises(InvalidSettings, match="nothing was started"):
        load_settings()
    monkeypatch.setenv("EPLB_SECURITY__INSECURE", "true")
    assert load_settings().security.insecure


@pytest.mark.parametrize(
    "security", [{"certificate": "/c"}, {"key": "/k"}, {"client_ca": "/a"}], ids=str
)
def test_half_a_lock_is_refused(monkeypatch: pytest.MonkeyPatch, security: dict[str, str]) -> None:
    for name, value in security.items():
        monkeypatch.setenv(f"EPLB_SECURITY__{name.upper()}", value)
    with pytest.raises(InvalidSettings, match="security"):
        load_settings()


def test_page_and_reflection_are_shown_to_this_machine_alone_unless_asked_for() -> None:
    inside, outside = Settings(), settings(ANYWHERE)
    metrics = Settings.model_validate({"server": {"metrics_host": ANYWHERE}})
    assert (has_page(inside), has_reflection(inside)) == (True, True)
    assert (has_page(metrics), has_reflection(outside)) == (False, False)
    told = Settings.model_validate(
        {"server": {"host": ANYWHERE, "metrics_host": ANYWHERE, "page": True, "reflection": True}}
    )
    assert (has_page(told), has_reflection(told)) == (True, True)
