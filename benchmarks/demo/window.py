"""A window into the demo's network: `make page`, or python -m benchmarks.demo.window NAME_FILE.

The demo runs where only its own loopback interface exists, so that a browser of this machine does
not reach its page. This takes a port of 127.0.0.1 outside, and passes every connection on to the
same port inside; nothing but this machine reaches it.
"""

import argparse
import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["main"]

_HERE = "127.0.0.1"
_LO_ONLY = Path(__file__).resolve().parents[2] / "deploy" / "lo-only"
_CHUNK = 1 << 16


def main() -> int:
    """Take the port, go inside, and pass on until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make page", description=__doc__)
    parser.add_argument("name_file", help="what `lo-only --name` wrote")
    parser.add_argument("--port", type=int, default=9464, help="default: %(default)s")
    parser.add_argument("--inside", type=int, default=-1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside >= 0:
        with suppress(KeyboardInterrupt):
            asyncio.run(_pass_on(socket.socket(fileno=given.inside), given.port))
        return 0
    try:
        door = socket.create_server((_HERE, given.port))
    except OSError as taken:
        print(f"port {given.port} of {_HERE} cannot be taken: {taken.strerror}", file=sys.stderr)
        return 1
    door.set_inheritable(True)
    again = [sys.executable, "-m", "benchmarks.demo.window", given.name_file]
    inside = ["--port", str(given.port), "--inside", str(door.fileno())]
    return os.execv(_LO_ONLY, [str(_LO_ONLY), "--join", given.name_file, *again, *inside])


async def _pass_on(door: socket.socket, port: int) -> None:
    """Serve at a door that was opened outside."""

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(_HERE, port)
        except OSError:
            writer.close()
            return
        async with asyncio.TaskGroup() as both:
            both.create_task(_pour(reader, back))
            both.create_task(_pour(there, writer))

    server = await asyncio.start_server(visit, sock=door)
    print(f"the demo's page: http://{_HERE}:{port}/   Ctrl-C closes this window alone", flush=True)
    async with server:
        await server.serve_forever()


async def _pour(source: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side has no more of them."""
    with suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            into.write(data)
            await into.drain()
    into.close()


if __name__ == "__main__":
    sys.exit(main())
