"""A controller whose disk runs full: spends numbers until the store refuses, and says how.

Run as `python full_disk_writer.py FILE`; no file may grow beyond 200 kB.
"""

import asyncio
import resource
import sys
from pathlib import Path

from eplb_service.domain.errors import StoreUnavailable
from eplb_service.store import SqliteStore
from tests.store.ledger import NAME, deployment, start, wave


async def main(path: Path) -> None:
    store = SqliteStore(path)
    generation = await store.acquire()
    await store.register(generation, deployment(), start())
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    number = 0
    while True:
        number += 1
        try:
            await store.spend(generation, NAME, wave(number))
        except StoreUnavailable as error:
            sys.stdout.write(f"{number} {error.code} {error}\n")
            break
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.spend(generation, NAME, wave(number))
    sys.stdout.write("went on\n")
    store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
