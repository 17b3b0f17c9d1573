"""When a controller's process looks for garbage that refers to itself.

Python looks through all objects whenever a quarter of them is new. With a thousand ranks the newest
reports are some 400,000 objects, of which as many are new every few seconds: reports that came
meanwhile waited 0.1 to 0.2 s. Reports refer to nothing that refers to them, and go without it.
"""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

EVERY_S = 600.0
NEVER = 2**31 - 1
"""Of young sweeps before an old one; the most that the interpreter takes."""


@asynccontextmanager
async def swept_seldom(every_s: float = EVERY_S) -> AsyncGenerator[None]:
    """Sweep old objects by the clock alone, young ones as ever; as before once it is left.

    every_s    from one sweep of everything to the next
    """
    before = gc.get_threshold()
    gc.set_threshold(before[0], before[1], NEVER)
    task = asyncio.create_task(_sweep(every_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        gc.set_threshold(*before)


async def _sweep(every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        gc.collect()
