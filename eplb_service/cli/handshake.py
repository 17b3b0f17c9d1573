"""Why no controller could be asked though something answers: a look at how it greets.

gRPC tells of a failed handshake in words for its makers. One handshake of our own, with the same
keys, tells which of them does not fit.
"""

import socket
import ssl
from collections.abc import Callable
from functools import partial

from eplb_service.cli.keys import Keys

PATIENCE_S = 2.0
"""How long each of at most two connections may take at each step."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""What a client of HTTP/2 says first, with no settings."""
OTHER_NAME = (62, 64)
"""OpenSSL's numbers: the certificate is for another host, or another address."""
OUT_OF_TIME = {9: "is not valid yet", 10: "has expired"}
NOT_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


def misfit(endpoint: str, keys: Keys) -> str:
    """Say what does not fit between keys and who answers; empty where nobody does, or all fits."""
    host, _, port = endpoint.rpartition(":")
    greet = partial(_greeted, host.strip("[]"), int(port))
    try:
        return _of_authority(endpoint, keys, greet) if keys.ca else _plain(endpoint, greet)
    except OSError:
        return ""  # nobody answers, or not in time: gRPC says as much


def _plain(endpoint: str, greet: Callable[[ssl.SSLContext, str], ssl.SSLSocket]) -> str:
    with greet(_believing_all(), ""):
        return (
            f"something answers at {endpoint}, but in TLS and not in plain text; name the "
            "authority of its certificate with --ca FILE"
        )


def _of_authority(
    endpoint: str, keys: Keys, greet: Callable[[ssl.SSLContext, str], ssl.SSLSocket]
) -> str:
    name = keys.server_name or endpoint.rpartition(":")[0].strip("[]")
    context = ssl.create_default_context(cafile=keys.ca)
    if keys.certificate:
        context.load_cert_chain(keys.certificate, keys.key)
    try:
        with greet(context, name) as greeted:
            greeted.sendall(PREFACE)
            return "" if greeted.recv(1) else _shown(endpoint, keys)
    except ssl.SSLCertVerificationError as error:
        return _disbelieved(endpoint, keys, name, error, greet)
    except ssl.SSLError as error:
        if error.reason in NOT_TLS:
            return (
                f"something answers at {endpoint}, but not in TLS; leave --ca out if it is a "
                "controller in plain text, or name another port"
            )
        return _shown(endpoint, keys) if "ALERT" in (error.reason or "") else ""


def _disbelieved(
    endpoint: str,
    keys: Keys,
    name: str,
    error: ssl.SSLCertVerificationError,
    greet: Callable[[ssl.SSLContext, str], ssl.SSLSocket],
) -> str:
    whose = f"the certificate of {endpoint}"
    if error.verify_code in OUT_OF_TIME:
        return f"{whose} {OUT_OF_TIME[error.verify_code]}; renew it, or set this machine's clock"
    if error.verify_code not in OTHER_NAME:
        return (
            f"{whose} is not of an authority in {keys.ca} ({error.verify_message}); is --ca right?"
        )
    context = ssl.create_default_context(cafile=keys.ca)
    context.check_hostname = False
    if keys.certificate:
        context.load_cert_chain(keys.certificate, keys.key)
    with greet(context, name) as greeted:
        found = greeted.getpeercert() or {}
    names = ", ".join(str(entry[1]) for entry in found.get("subjectAltName", ())) or "no name"
    return (
        f"{whose} is for other names than {name}: for {names}; ask by one of them, or say which "
        "it must hold with --server-name"
    )


def _shown(endpoint: str, keys: Keys) -> str:
    """Say why a controller hangs up after a handshake in which we believed it."""
    if keys.certificate:
        return (
            f"{endpoint} hangs up on the certificate in {keys.certificate}; it is probably not of "
            "an authority that the controller believes, or has expired"
        )
    return (
        f"{endpoint} hangs up where no certificate is shown; it probably asks for one: name it "
        "with --certificate FILE and --key FILE"
    )


def _believing_all() -> ssl.SSLContext:
    """Return what only looks whether there is TLS; nothing is said or believed over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _greeted(host: str, port: int, context: ssl.SSLContext, name: str) -> ssl.SSLSocket:
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), PATIENCE_S) as raw:
        return context.wrap_socket(raw, server_hostname=name or None)
