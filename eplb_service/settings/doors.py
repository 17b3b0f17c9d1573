"""Which doors a controller opens, and that none is open to strangers by mistake."""

from eplb_service.domain.addresses import is_this_machine
from eplb_service.domain.errors import InvalidSettings
from eplb_service.settings.settings import Settings


def require_locked_doors(settings: Settings) -> None:
    """Raise InvalidSettings for an address that strangers reach, without lock and bell."""
    host, security = settings.server.host, settings.security
    if is_this_machine(host) or security.insecure:
        return
    missing: list[str] = []
    if not security.certificate:
        missing.append("TLS is off (security.certificate and security.key are not set)")
    if not security.client_ca and not security.tokens:
        missing.append("nobody is asked who calls (security.client_ca or security.tokens)")
    if missing:
        raise InvalidSettings(
            f"server.host is {host}, which other machines reach, but {' and '.join(missing)}; "
            "set them (docs/security.md says how), or security.insecure: true for a network that "
            "keeps strangers out by itself; nothing was started"
        )


def has_page(settings: Settings) -> bool:
    """Whether the page is served."""
    server = settings.server
    return is_this_machine(server.metrics_host) if server.page is None else server.page


def has_reflection(settings: Settings) -> bool:
    """Whether gRPC lists its services."""
    server = settings.server
    return is_this_machine(server.host) if server.reflection is None else server.reflection
