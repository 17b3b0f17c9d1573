"""What eplbctl shows a controller, and which controller it believes."""

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import grpc
from pydantic import BaseModel

from eplb_service.cli.ends import Exit, Failure, invalid
from eplb_service.cli.files import read_bytes
from eplb_service.domain.addresses import host_of, is_this_machine
from eplb_service.domain.errors import InvalidSettings
from eplb_service.server.tls import ClientFiles, channel_credentials

VARIABLES = {
    "ca": "EPLB_CA",
    "certificate": "EPLB_CERTIFICATE",
    "key": "EPLB_KEY",
    "server_name": "EPLB_SERVER_NAME",
    "token_file": "EPLB_TOKEN_FILE",
}
FILES = ("ca", "certificate", "key", "token_file")
INSECURE_VARIABLE = "EPLB_INSECURE"


class Keys(BaseModel, frozen=True, extra="forbid"):
    """Files of keys; an empty name stands for none."""

    ca: str = ""
    """PEM: authorities of the controller's certificate; with it TLS is on."""
    certificate: str = ""
    """PEM: the operator's certificate, which names eplb://operator/NAME or eplb://viewer/NAME."""
    key: str = ""
    server_name: str = ""
    """Name that the controller's certificate must hold; empty: the endpoint's host."""
    token_file: str = ""
    """A bearer token and nothing else."""
    insecure: bool = False
    """Whether a controller on another machine may be asked without TLS."""

    def channel(self, endpoint: str, options: tuple[tuple[str, int], ...]) -> grpc.Channel:
        """Open a channel; raises Failure where keys and endpoint do not fit."""
        if bool(self.certificate) != bool(self.key) or (self.certificate and not self.ca):
            raise invalid("a certificate needs its key and --ca; name all three")
        if not self.ca:
            if not (self.insecure or is_this_machine(host_of(endpoint))):
                raise Failure(
                    Exit.NOT_ALLOWED,
                    f"{endpoint} is on another machine and TLS is off; name the authority of its "
                    "certificate with --ca, or say --insecure for a network that keeps strangers "
                    "out by itself. Nothing was asked",
                )
            return grpc.insecure_channel(endpoint, options=options)
        for name in filter(None, (self.ca, self.certificate, self.key)):
            if Path(name).exists() and not Path(name).is_file():  # each is read more than once
                raise invalid(f"{name} is no regular file. Nothing was asked")
        files = ClientFiles(
            Path(self.ca),
            Path(self.certificate) if self.certificate else None,
            Path(self.key) if self.key else None,
        )
        try:
            credentials = channel_credentials(files)
        except InvalidSettings as wrong:
            raise invalid(f"{wrong}. Nothing was asked") from wrong
        named = (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()
        return grpc.secure_channel(endpoint, credentials, options=(*options, *named))

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return what goes beside every request; raises Failure where the token is none."""
        if not self.token_file:
            return ()
        path = Path(self.token_file)
        if not path.exists():
            raise invalid(f"token file {path}: No such file or directory. Nothing was asked")
        words = read_bytes(path).split()
        if len(words) != 1 or not words[0].isascii():
            raise invalid(
                f"token file {self.token_file} holds no token; expected one word. Nothing was asked"
            )
        return (("authorization", f"Bearer {words[0].decode()}"),)


def given_keys(args: Namespace, kept: Keys) -> Keys:
    """Return the keys of a command: its options, above the environment, above a context's."""
    told: dict[str, object] = {name: getattr(kept, name) for name in Keys.model_fields}
    told |= {name: os.environ[v] for name, v in VARIABLES.items() if os.environ.get(v)}
    if variable := os.environ.get(INSECURE_VARIABLE):
        told["insecure"] = variable.lower() in ("1", "true", "yes")
    return Keys.model_validate({**told, **asked_keys(vars(args))})


def asked_keys(given: Mapping[str, object]) -> dict[str, object]:
    """Return what the options of a command say of keys, files by their absolute paths."""
    asked = {name: given[name] for name in Keys.model_fields if name in given}
    return {
        name: str(Path(str(value)).absolute()) if name in FILES and value else value
        for name, value in asked.items()
    }
