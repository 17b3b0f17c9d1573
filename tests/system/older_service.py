"""`eplb-service` whose messages to and from ranks are those of the release before."""

import sys

from eplb.v1 import agent_pb2

from eplb_service.host.main import main
from eplb_service.protocol.messages import Down, Up
from eplb_service.server import agent, reader
from eplb_service.wire.down import encode_down
from eplb_service.wire.up import decode_up
from tests.wire.older import through


def older_up(message: agent_pb2.UpMessage) -> Up:
    """Read what the release before would have understood."""
    return decode_up(agent_pb2.UpMessage.FromString(through("UpMessage", message)))


def older_down(word: Down) -> agent_pb2.DownMessage:
    """Say what the release before could have said."""
    return agent_pb2.DownMessage.FromString(through("DownMessage", encode_down(word)))


if __name__ == "__main__":
    agent.decode_up = reader.decode_up = older_up
    agent.encode_down = older_down
    sys.exit(main())
