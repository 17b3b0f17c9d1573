"""Addresses on the street, and which of them strangers reach."""

from ipaddress import ip_address


def is_this_machine(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    >>> [is_this_machine(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "node3")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(endpoint: str) -> str:
    """Return the host of host:port.

    >>> host_of("[::1]:50051"), host_of("node3:50051")
    ('::1', 'node3')
    """
    return endpoint.rpartition(":")[0].removeprefix("[").removesuffix("]")
