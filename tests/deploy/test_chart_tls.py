"""With TLS, the controller, its probes, the test and agents all use the same files."""

import tempfile
from pathlib import Path

import pytest

from eplb_service.settings.sources import load_settings
from tests.deploy.helm import MODES, containers, named, of_kind, pod_templates, render, template
from tests.deploy.trees import Json, merged

WAYS: dict[str, Json] = {
    "own": {"tls": {"existingSecret": "mine"}},
    "cert-manager": {"tls": {"certManager": {"issuer": "ca", "issuerKind": "ClusterIssuer"}}},
}
SECRETS = {"own": "mine", "cert-manager": "eplb-tls"}
FILES = {"--ca": "ca.crt", "--certificate": "tls.crt", "--key": "tls.key"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["rayCluster", "deployment"])
def test_the_pod_that_serves_has_the_secret_that_its_settings_name(mode: str, way: str) -> None:
    found = render(merged(MODES[mode], WAYS[way]))
    service = named(found, "Service", "eplb")
    (pod,) = (
        pod
        for pod in pod_templates(found)
        if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    )
    (container,) = pod["spec"]["containers"]
    assert {"name": "tls", "mountPath": "/etc/eplb-tls", "readOnly": True} in container[
        "volumeMounts"
    ]
    (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "tls")
    assert volume["secret"]["secretName"] == SECRETS[way]
    probe = container["readinessProbe"]
    assert "grpc" not in probe, "Kubernetes' own gRPC probe knows no TLS"
    words = probe["exec"]["command"]
    for option, file in FILES.items():
        assert words[words.index(option) + 1] == f"/etc/eplb-tls/{file}"
    assert words[words.index("--server-name") + 1] == "eplb.moe.svc"


@pytest.mark.parametrize("way", WAYS)
def test_the_program_reads_settings_that_let_in_nobody_without_a_certificate(way: str) -> None:
    found = render(WAYS[way])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.yaml"
        file.write_text(named(found, "ConfigMap", "eplb-settings")["data"]["settings.yaml"])
        security = load_settings(file).security
    assert not security.insecure
    assert (security.certificate, security.key, security.client_ca) == tuple(
        f"/etc/eplb-tls/{file}" for file in ("tls.crt", "tls.key", "ca.crt")
    )


def test_agents_are_told_where_their_own_certificate_will_be() -> None:
    env = named(render(WAYS["own"]), "ConfigMap", "eplb-agent")["data"]
    assert env["EPLB_AGENT_TLS__CA"] == "/etc/eplb-agent-tls/ca.crt"
    assert env["EPLB_AGENT_TLS__KEY"] == "/etc/eplb-agent-tls/tls.key"
    assert "EPLB_AGENT_INSECURE" not in env
    own = merged(WAYS["own"], {"agents": {"env": {"EPLB_AGENT_TLS__CA": "/elsewhere"}}})
    env = named(render(own), "ConfigMap", "eplb-agent")["data"]
    assert env["EPLB_AGENT_TLS__CA"] == "/elsewhere"
    assert "EPLB_AGENT_TLS__CA" not in named(render({}), "ConfigMap", "eplb-agent")["data"]


def test_cert_manager_is_asked_only_where_no_secret_is_given() -> None:
    (asked,) = of_kind(render(WAYS["cert-manager"]), "Certificate")
    assert asked["spec"]["secretName"] == "eplb-tls"
    assert asked["spec"]["issuerRef"]["kind"] == "ClusterIssuer"
    assert "eplb.moe.svc" in asked["spec"]["dnsNames"]
    assert not of_kind(render(merged(WAYS["cert-manager"], WAYS["own"])), "Certificate")
    assert not of_kind(render({}), "Certificate")


def test_the_test_pod_asks_with_a_certificate() -> None:
    (pod,) = (one for one in render(WAYS["own"]) if one["kind"] == "Pod")
    for container in containers([pod]):
        assert "--ca" in container["command"]
        assert container["volumeMounts"][0]["mountPath"] == "/etc/eplb-tls"
    assert pod["spec"]["volumes"][0]["secret"]["secretName"] == "mine"


def test_a_wrong_issuer_kind_is_refused_with_those_there_are() -> None:
    done = template("4", {"tls": {"certManager": {"issuerKind": "Vault"}}})
    assert done.code != 0
    assert "ClusterIssuer" in done.complaint
