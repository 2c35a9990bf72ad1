"""A bounded queue of commands that one thread takes in batches."""

import threading
from collections import deque
from typing import Generic, TypeVar

from godwit.errors import EngineError

T = TypeVar("T")


class Inbox(Generic[T]):
    """Commands in order; more than `limit` waiting means that the taker is stalled."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._changed = threading.Condition()

    def put(self, item: T, *, is_urgent: bool = False) -> None:
        """Queue one command; EngineError where the queue is full, unless it is urgent (frees something)."""
        with self._changed:
            if len(self._items) >= self._limit and not is_urgent:
                raise EngineError(f"the engine is stalled: {len(self._items)} commands wait for it")
            self._items.append(item)
            self._changed.notify()

    def take(self, wait_s: float | None) -> list[T]:
        """All waiting commands; where there are none, wait up to `wait_s` (None: for ever) for the first."""
        with self._changed:
            if not self._items and wait_s != 0:
                self._changed.wait(wait_s)
            items = list(self._items)
            self._items.clear()
            return items
