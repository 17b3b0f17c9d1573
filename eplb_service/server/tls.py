"""TLS on the street: certificates of both ends, read again when their files change."""

import logging
from dataclasses import dataclass
from pathlib import Path

import grpc

from eplb_service.domain.errors import InvalidSettings
from eplb_service.server.key_files import Watched, read_file, require_authorities, require_pair

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """What the controller shows, and whom it believes."""

    certificate: Path
    """PEM: its own certificate, and those between it and the authority."""
    key: Path
    client_ca: Path | None = None
    """PEM: authorities of callers' certificates; every caller must then show one."""

    def _paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path)

    def watched(self) -> "Watched[grpc.ServerCertificateConfiguration]":
        """Read them; raises InvalidSettings."""
        return Watched(self._paths(), self._read)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        require_pair(self.certificate, self.key)
        if self.client_ca is not None:
            require_authorities(self.client_ca)
        return grpc.ssl_server_certificate_configuration(
            [(read_file(self.key, "key"), read_file(self.certificate, "certificate"))],
            read_file(self.client_ca, "certificate authority") if self.client_ca else None,
        )


def server_credentials(files: ServerFiles) -> grpc.ServerCredentials:
    """Return credentials that follow their files: every handshake uses what they say then.

    Files that make no sense are complained of once, and what they said before stays in use.
    Raises InvalidSettings where they make none at the start.
    """
    watched = files.watched()

    def newest() -> grpc.ServerCertificateConfiguration:
        try:
            if watched.refreshed():
                log.info("certificate renewed", extra={"certificate": str(files.certificate)})
        except InvalidSettings as wrong:
            log.error("certificate not renewed", extra={"code": wrong.code, "text": str(wrong)})  # noqa: TRY400 -- the text says it all
        return watched.value

    return grpc.dynamic_ssl_server_credentials(
        watched.value, newest, require_client_authentication=files.client_ca is not None
    )


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What a caller of the controller shows, and whom it believes."""

    ca: Path
    """PEM: authorities of the controller's certificate."""
    certificate: Path | None = None
    key: Path | None = None


def channel_credentials(files: ClientFiles) -> grpc.ChannelCredentials:
    """Return credentials of one channel, from what the files say now; raises InvalidSettings."""
    require_authorities(files.ca)
    ca = read_file(files.ca, "certificate authority")
    if files.certificate is None or files.key is None:
        return grpc.ssl_channel_credentials(ca)
    require_pair(files.certificate, files.key)
    return grpc.ssl_channel_credentials(
        ca, read_file(files.key, "key"), read_file(files.certificate, "certificate")
    )
