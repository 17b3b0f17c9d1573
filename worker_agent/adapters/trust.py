"""What the agent shows the controller, and which controller it believes."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from eplb_service.domain.addresses import host_of, is_this_machine
from eplb_service.domain.errors import InvalidSettings

Options = list[tuple[str, int | str]]


@dataclass(frozen=True, slots=True)
class Trust:
    """Files are read anew for every connection, so that replaced ones come into use by then.

    An empty name stands for a file that there is not.
    """

    ca: str = ""
    """PEM: authorities of the controller's certificate; without it the street is plain text."""
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    """Name that the controller's certificate must hold; empty: the endpoint's host."""
    token_file: str = ""
    insecure: bool = False

    def require_fit(self, endpoint: str) -> None:
        """Raise InvalidSettings for plain text to another machine, and for unreadable files."""
        if not (self.ca or self.insecure or is_this_machine(host_of(endpoint))):
            raise InvalidSettings(
                f"the controller is at {endpoint}, on another machine, and TLS is off (tls.ca is "
                "not set); set it, or insecure: true for a network that keeps strangers out by "
                "itself; the rank does not attach"
            )
        self.token()
        if self.certificate:
            try:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_cert_chain(self.certificate, self.key, _no_password)
            except (OSError, ValueError) as error:
                raise InvalidSettings(
                    f"certificate {self.certificate} and key {self.key} make no pair ({error}); "
                    "expected PEM files, the key without a password; the rank does not attach"
                ) from error
        self._credentials()

    def channel(self, endpoint: str, options: Options) -> grpc.Channel:
        """Open a channel by what the files say now; raises InvalidSettings."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(endpoint, options=options)
        if self.server_name:
            options = [*options, ("grpc.ssl_target_name_override", self.server_name)]
        return grpc.secure_channel(endpoint, credentials, options=options)

    def token(self) -> str:
        """Return the bearer token, empty where there is none; raises InvalidSettings."""
        if not self.token_file:
            return ""
        token = _read(self.token_file).strip()
        if not token or not token.isascii() or len(token.split()) != 1:
            raise InvalidSettings(
                f"{self.token_file} holds {len(token)} bytes that are no token; expected one word "
                "of ASCII characters"
            )
        return token.decode()

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if not self.ca:
            return None
        if not self.certificate:
            return grpc.ssl_channel_credentials(_read(self.ca))
        return grpc.ssl_channel_credentials(
            _read(self.ca), _read(self.key), _read(self.certificate)
        )


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidSettings(f"{file}: {error.strerror}") from error


def _no_password() -> str:
    raise ValueError("the key has a password")
