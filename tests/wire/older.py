"""The release before, as far as its messages go: the committed baseline of proto."""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

BASELINE = Path(__file__).parents[2] / "proto" / "baseline.binpb"


def _older() -> dict[str, type[Message]]:
    """Message classes of the older release, by full name."""
    files = descriptor_pb2.FileDescriptorSet.FromString(BASELINE.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool)


OLDER = _older()


def through(name: str, message: Message) -> bytes:
    """Let the older release read a message and say what it understood."""
    read = OLDER[f"eplb.v1.{name}"].FromString(message.SerializeToString())
    read.DiscardUnknownFields()
    return read.SerializeToString()
