"""From settings to the locks of the server's door."""

import logging
from pathlib import Path

from eplb_service.server.doorman import Doorman
from eplb_service.server.gate import Note
from eplb_service.server.serving import Locks
from eplb_service.server.tls import ServerFiles, server_credentials
from eplb_service.server.tokens import TokenBook
from eplb_service.settings.tree import SecuritySettings

log = logging.getLogger(__name__)


def locks_of(security: SecuritySettings, note: Note) -> Locks:
    """Read keys and tokens; raises InvalidSettings where they make no sense.

    note    keeps a record of refusals
    """
    tokens = TokenBook(Path(security.tokens)) if security.tokens else None
    is_asked = tokens is not None or bool(security.client_ca)
    if not is_asked:
        log.warning("nobody is asked who calls", extra={"has_tls": bool(security.certificate)})
    credentials = None
    if security.certificate:
        client_ca = Path(security.client_ca) if security.client_ca else None
        credentials = server_credentials(
            ServerFiles(Path(security.certificate), Path(security.key), client_ca)
        )
    return Locks(credentials=credentials, doorman=Doorman(tokens) if is_asked else None, note=note)
