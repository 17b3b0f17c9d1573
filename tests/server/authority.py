"""A certificate authority of a test, made with openssl as docs/security.md makes one."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl(
            *[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ],
            *("-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.file)),
        )

    def issue(self, name: str, *alternatives: str) -> Issued:
        """Issue one; alternatives as openssl writes them: URI:..., DNS:..., IP:..."""
        made = Issued(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(alternatives or ('DNS:nobody',))}\n")
        openssl(
            *("req", *EC),
            *("-subj", f"/CN={name}", "-keyout", str(made.key), "-out", str(request)),
        )
        openssl(
            *("x509", "-req", "-days", "2", "-in", str(request), "-out", str(made.certificate)),
            *("-CA", str(self.file), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-extfile", str(extensions)),
        )
        return made

    def server(self, name: str = "controller") -> Issued:
        """Issue a certificate for this machine."""
        return self.issue(name, "IP:127.0.0.1", "DNS:localhost")

    def rank(self, deployment: str, rank: int | str) -> Issued:
        """Issue a rank's certificate."""
        name = f"{deployment.replace('/', '-')}-{rank}".replace("*", "all")
        return self.issue(name, f"URI:eplb://agent/{deployment}/{rank}")
