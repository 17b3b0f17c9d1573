"""Environment variables EPLB_*: whose each is, and which belong to nobody.

All programs of ours share one prefix, so that each must know the others' families to tell a
misspelt name from one that is not its own. Nothing here reads the environment.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "EPLB_"
DELIMITER: Final = "__"
SECTIONS: Final = (
    *("server", "security", "store", "leading", "directory", "planning", "shares", "budget"),
    *("gates", "window", "protocol", "registration"),
)
"""Sections of the service's settings: EPLB_SECTION__NAME, or EPLB_SECTION as JSON."""
OF_CLIENTS: Final = (
    *("EPLB_ENDPOINT", "EPLB_CONTEXT", "EPLB_CONTEXTS", "EPLB_TOKEN_FILE", "EPLB_CA"),
    *("EPLB_CERTIFICATE", "EPLB_KEY", "EPLB_SERVER_NAME", "EPLB_INSECURE"),
)
OF_AGENTS: Final = tuple(
    f"EPLB_AGENT_{name}"
    for name in (
        *("ENDPOINT", "TLS", "TOKEN_FILE", "INSECURE", "DEPLOYMENT", "PACE", "DEVICE", "NODE"),
        *("SUPERNODE", "MODEL_LAYERS", "AGREE_EVERY", "ON_CORRUPTION", "WAIT_FOR_WELCOME_S"),
        *("GROUP_TIMEOUT_S", "CLOSE_WITHIN_S", "REPORT_EVERY_STEPS", "SENT_EVERY_REPORTS"),
    )
)
"""Nested ones follow after two underscores."""
OF_VLLM: Final = tuple(
    f"EPLB_VLLM_{name}"
    for name in (
        *("ENABLED", "BALANCER", "REDUNDANT_EXPERTS", "START_MAP", "STAGING_ROWS"),
        *("MEMORY_BUDGET_MIB", "EXCHANGE", "UNOWNED"),
    )
)
FAMILIES: Final = ("EPLB_AGENT_", "EPLB_VLLM_")
"""Names that begin so are judged by the program that reads them, and by no other."""
OF_TESTS: Final = "EPLB_TEST_"
_KUBERNETES: Final = re.compile(
    r"EPLB_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""What each container is told of a Service whose name is eplb or begins with eplb-."""
_KUBERNETES_PORT: Final = re.compile(r"(tcp|udp|sctp)://.+")
"""The value of such a Service's ..._PORT, which else looks like a setting."""


def misspelt(told: Mapping[str, str], *, own: str = "") -> list[str]:
    """Say of each variable that no program of ours knows what may have been meant.

    told    the environment
    own     the family of the asking program, whose names are looked at one by one
    """
    return [
        f"{name} {_meant(name)}"
        for name, value in told.items()
        if name.upper().startswith(PREFIX) and not _is_known(name, value, own)
    ]


def near(name: str, known: Iterable[str]) -> str:
    """Say which known names look like a wrong one."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"


def _is_known(name: str, value: str, own: str) -> bool:
    upper = name.upper()
    if name in OF_CLIENTS or upper.startswith(OF_TESTS):
        return True
    if _KUBERNETES.fullmatch(name):
        return True
    if name.endswith("_PORT") and _KUBERNETES_PORT.fullmatch(value):
        return True
    first, *_ = upper.partition(DELIMITER)
    if upper.startswith(FAMILIES):
        return not (own and upper.startswith(own)) or first in {*OF_AGENTS, *OF_VLLM}
    return first.removeprefix(PREFIX).lower() in SECTIONS  # the rest is for the settings to judge


def _meant(name: str) -> str:
    upper, unknown = name.upper(), "is no variable that is known"
    if upper in OF_CLIENTS:
        return f"{unknown}; did you mean {upper}?"
    if DELIMITER in upper and not upper.startswith(FAMILIES):
        section = upper.removeprefix(PREFIX).partition(DELIMITER)[0].lower()
        return f"names no section of the settings; {near(section, SECTIONS)}"
    for section in SECTIONS:
        start = f"{PREFIX}{section.upper()}"
        if upper.startswith(f"{start}_"):
            meant = f"{start}{DELIMITER}{upper.removeprefix(f'{start}_')}"
            return f"{unknown}; did you mean {meant}?"
    return f"{unknown}; {near(upper, (*OF_CLIENTS, *OF_AGENTS, *OF_VLLM))}"
