"""One Redis server as a place to write: a script that compares, then writes, or does neither.

Every write names the generation of the writer and the version of the deployment that it was
decided on. The script runs alone at the server, so that a write of a fenced controller, or one
that was decided on something older than what is there, changes nothing.
"""

# The client's own annotations are incomplete.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from eplb_service.domain.errors import StoreUnavailable

T = TypeVar("T")
Command = tuple[str | bytes | int, ...]
"""A Redis command with its arguments."""

CALLS_IN_DEADLINE = 4
"""A call to the server may take a deadline's share of this."""

NOTHING = "nothing was recorded, serving goes on"
UNKNOWN = "whether it is recorded will be seen when it answers again, serving goes on"
"""What a write that failed means: before it was sent, and after."""

GIVE = """
while at <= #ARGV do
  local size = tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, at + size))
  at = at + 1 + size
end
"""
"""Gives the commands that lie flat in ARGV from `at` on, each behind its length."""

WRITE = f"""
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 0 end
if (redis.call('HGET', KEYS[2], 'version') or '') ~= ARGV[2] then return 0 end
local at = 3
{GIVE}
redis.call('HINCRBY', KEYS[2], 'version', 1)
return 1
"""


LEAD = f"""
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 0 end
local at = 2
{GIVE}
return 1
"""
REPLACE = f"""
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 0 end
if (redis.call('GET', KEYS[2]) or '0') ~= ARGV[2] then return 0 end
local at = 3
{GIVE}
return 1
"""


class Wire:
    """A server that is asked from threads, never from the event loop.

    url    redis://[user:password@]host[:port][/database], or rediss: for TLS
    """

    def __init__(self, url: str, *, deadline_s: float) -> None:
        parts = urlsplit(url)
        self.place = f"{parts.hostname}:{parts.port or 6379}{parts.path}"
        """What errors name: never the password."""
        self._deadline_s = deadline_s
        patience_s = deadline_s / CALLS_IN_DEADLINE
        self._client: Redis = Redis.from_url(
            url,
            socket_timeout=patience_s,
            socket_connect_timeout=patience_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._is_fit = False

    async def run(self, what: str, work: Callable[[], T | None], *, is_reading: bool = False) -> T:
        """Do work until it is done, in a thread; None means that another writer was faster.

        Raises StoreUnavailable if that takes longer than the deadline.
        """
        return await asyncio.to_thread(self._run, what, work, "" if is_reading else UNKNOWN)

    def ask(self, *command: str | bytes | int) -> object:
        """Give one command."""
        return cast("object", self._client.execute_command(*command))

    def look(self, *commands: Command) -> list[object]:
        """Give several commands, which see one moment."""
        with self._client.pipeline(transaction=True) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return cast("list[object]", pipe.execute())

    def write(
        self, keys: Sequence[str], guard: tuple[int, str], commands: Sequence[Command]
    ) -> bool:
        """Write all commands or none; False where fence or version are not those of `guard`.

        keys    first the fence, then the deployment, then all others that are written
        """
        return bool(self.ask("EVAL", WRITE, len(keys), *keys, *guard, *_flat(commands)))

    def lead(self, keys: Sequence[str], generation: int, commands: Sequence[Command]) -> bool:
        """Write all commands or none; False where the fence is another generation's.

        keys    first the fence, then all others that are written
        """
        return bool(self.ask("EVAL", LEAD, len(keys), *keys, generation, *_flat(commands)))

    def replace(
        self, keys: Sequence[str], seen: tuple[int, int], commands: Sequence[Command]
    ) -> bool:
        """Write all commands or none; False where fence or beats are not those of `seen`.

        keys    first fence and beats, then all others that are written
        """
        return bool(self.ask("EVAL", REPLACE, len(keys), *keys, *seen, *_flat(commands)))

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _run(self, what: str, work: Callable[[], T | None], then: str) -> T:
        give_up_at = time.monotonic() + self._deadline_s
        meaning = then and NOTHING
        try:
            self.require_durable()
            meaning = then
            while time.monotonic() < give_up_at:
                done = work()
                if done is not None:
                    return done
        except RedisError as error:
            raise StoreUnavailable(
                f"store {self.place}: could not {what}: {error}", meaning
            ) from error
        raise StoreUnavailable(
            f"store {self.place}: could not {what} within {self._deadline_s:g} s, as others wrote "
            "at the same time",
            NOTHING,
        )

    def require_durable(self) -> None:
        """Raise StoreUnavailable unless what is acknowledged survives a crash of the server."""
        if self._is_fit:
            return
        try:
            found = cast("dict[bytes, bytes]", self._client.config_get("append*"))
        except ResponseError as error:
            raise StoreUnavailable(
                f"store {self.place}: CONFIG GET is refused ({error}), so it cannot be seen "
                "whether writes are durable; allow it to this user"
            ) from error
        told = {_text(name): _text(value) for name, value in found.items()}
        for name, wanted in (("appendonly", "yes"), ("appendfsync", "always")):
            if told.get(name) != wanted:
                raise StoreUnavailable(
                    f"store {self.place}: {name} is {told.get(name)}, expected {wanted}, so that a "
                    "number that was spent is never spent again; set it in redis.conf"
                )
        self._is_fit = True


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _flat(commands: Sequence[Command]) -> list[str | bytes | int]:
    return [part for command in commands for part in (len(command), *command)]
