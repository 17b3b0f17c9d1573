"""A real etcd and kube-apiserver on the loopback interface, and kubectl and helm talking to it.

Nothing runs pods there: objects are stored, defaulted, validated and authorised, that is all.
"""

import gzip
import json
import os
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.deploy.helm import TOOLS, Ended, helm
from tests.deploy.kuberay import DEFINITION
from tests.deploy.trees import Json, is_list, is_tree
from tests.host.processes import await_so, free_port

START_S = 120.0
STOP_S = 20.0
CALL_S = 120.0
TOKEN = "a-token-of-this-test"  # noqa: S105 - of a server that lives as long as the test


@dataclass(frozen=True)
class Kube:
    """One running server."""

    kubeconfig: Path

    def kubectl(self, *words: str, given: str | None = None) -> Ended:
        """Run kubectl as administrator."""
        return self._run(str(TOOLS / "helm-4" / "kubectl"), *words, given=given)

    def helm(self, major: str, *words: str, values: Json | None = None) -> Ended:
        """Run helm as administrator."""
        more = () if values is None else ("--values", "-")
        given = None if values is None else json.dumps(values)
        return self._run(str(helm(major)), *words, *more, given=given)

    def get(self, kind: str, namespace: str) -> dict[str, Json]:
        """Objects of one kind in a namespace, by name."""
        done = self.kubectl("get", kind, "--namespace", namespace, "--output", "json")
        assert done.code == 0, done.complaint
        return {one["metadata"]["name"]: one for one in json.loads(done.text)["items"]}

    def _run(self, *command: str, given: str | None) -> Ended:
        home = self.kubeconfig.parent
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(home)}
        done = subprocess.run(
            command,
            input=given,
            stdin=None if given is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=env,
            timeout=CALL_S,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def kube_server(apiserver: Path, folder: Path) -> Generator[Kube]:
    """Start both, wait until they are ready, and end both by their pids."""
    etcd_url = f"http://127.0.0.1:{free_port()}"
    peer_url = f"http://127.0.0.1:{free_port()}"
    port = free_port()
    key = folder / "accounts.pem"
    key.write_bytes(_key())
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{TOKEN},admin,1,"system:masters"\n')
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig(port)))
    with ExitStack() as running:
        etcd = [
            *("etcd", "--name=only", f"--data-dir={folder / 'etcd'}"),
            *(f"--listen-client-urls={etcd_url}", f"--advertise-client-urls={etcd_url}"),
            *(f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"),
            f"--initial-cluster=only={peer_url}",
        ]
        running.enter_context(_process(etcd, folder / "etcd.log"))
        server = [
            *(str(apiserver), f"--etcd-servers={etcd_url}", "--bind-address=127.0.0.1"),
            *(f"--secure-port={port}", f"--cert-dir={folder / 'certs'}"),
            *(f"--token-auth-file={tokens}", "--authorization-mode=RBAC"),
            *(
                "--disable-admission-plugins=ServiceAccount",
                "--service-cluster-ip-range=10.0.0.0/24",
            ),
            *("--service-account-issuer=https://kube.test", "--api-audiences=kube"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        ]
        log = folder / "apiserver.log"
        process = running.enter_context(_process(server, log))
        kube = Kube(kubeconfig)

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            return kube.kubectl("get", "--raw", "/readyz").text == "ok"

        await_so(is_ready, within_s=START_S, what="a ready kube-apiserver")
        yield kube


@contextmanager
def _process(command: list[str], log: Path) -> Generator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


def _key() -> bytes:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _kubeconfig(port: int) -> Json:
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "only",
        "clusters": [{"name": "only", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "only", "context": {"cluster": "only", "user": "admin"}}],
    }


def definition_for_1_20() -> str:
    """KubeRay's RayCluster without what a server of 1.20 does not understand."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load(gzip.decompress(DEFINITION.read_bytes()), Loader=loader)
    for version in definition["spec"]["versions"]:
        _drop_newer(version["schema"])
    return json.dumps(definition)


def _drop_newer(node: Any) -> None:
    if is_tree(node):
        node.pop("x-kubernetes-validations", None)
        if node.get("x-kubernetes-list-type") == "map":
            del node["x-kubernetes-list-type"]
            node.pop("x-kubernetes-list-map-keys", None)
        if node.get("default") == "" and "type" in node:
            del node["default"]
        for inner in node.values():
            _drop_newer(inner)
    elif is_list(node):
        for inner in node:
            _drop_newer(inner)
