"""How far long work is, on a terminal; in a pipe there is nothing but answers and complaints."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

WIDTH = 30
CLEAR = "\r\x1b[K"
"""Back to the start of the line, then erase it."""


@contextmanager
def progress() -> Generator[Callable[[str], None]]:
    """Yield what puts a line in the place of the last one on stderr; it is gone at the end."""
    is_terminal = sys.stderr.isatty()

    def draw(text: str) -> None:
        if is_terminal:
            sys.stderr.write(f"{CLEAR}{text}")
            sys.stderr.flush()

    try:
        yield draw
    finally:
        draw("")


def bar(done: float, of: float, text: str) -> str:
    """Draw a bar.

    >>> bar(15, 30, "15 of 30")
    '[###############...............] 15 of 30'
    """
    filled = int(WIDTH * min(done, of) / of) if of else 0
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}] {text}"
