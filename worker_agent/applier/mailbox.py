"""How the step's thread and the agent's hand things to each other without waiting.

One thread posts and one thread takes. Both calls are single operations of a deque,
which no thread can be stopped inside of: there is no lock that a frozen agent could
hold while a step wants it.
"""

from collections import deque
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A bounded queue from one thread to one other."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._num_dropped = 0

    @property
    def num_dropped(self) -> int:
        """Items refused because the box was full."""
        return self._num_dropped

    @property
    def capacity(self) -> int:
        """Most items that the box holds."""
        return self._capacity

    @property
    def is_full(self) -> bool:
        """Whether the next post would be refused."""
        return len(self._items) >= self._capacity

    def post(self, item: T) -> bool:
        """Put an item in; False, counted, if the box is full. For the posting thread."""
        if self.is_full:
            self._num_dropped += 1
            return False
        self._items.append(item)
        return True

    def take(self) -> T | None:
        """Return the oldest item, or None. For the taking thread."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def peek(self) -> T | None:
        """Return the oldest item and leave it there, or None. For the taking thread."""
        try:
            return self._items[0]
        except IndexError:
            return None

    def clear(self) -> None:
        """Forget what is in the box. For the taking thread."""
        while self.take() is not None:
            pass


class Bell:
    """Wakes the agent's thread; ringing never waits and never piles up."""

    def __init__(self) -> None:
        self._strokes: SimpleQueue[None] = SimpleQueue()
        self._is_rung = False

    def ring(self) -> None:
        """Wake whoever waits, or the next who does; from any thread."""
        if not self._is_rung:
            self._is_rung = True
            self._strokes.put(None)

    def wait(self, timeout_s: float) -> None:
        """Return at the next stroke, or after the time is over."""
        try:
            self._strokes.get(timeout=timeout_s)
        except Empty:
            return
        self._is_rung = False
