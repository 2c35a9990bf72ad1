"""Calls that read an engine's model from any thread, and its end, which waits for them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from godwit.errors import NoFreeSlotError
from godwit.types import ModelName


class Readers:
    """Counts those that read a model, until it is to be freed."""

    def __init__(self, model: ModelName) -> None:
        self._model = model
        self._changed = threading.Condition()
        self._num = 0
        self._is_refusing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the model until the block ends; NoFreeSlotError where it is about to go."""
        with self._changed:
            if self._is_refusing:
                raise NoFreeSlotError(f"{self._model} is being unloaded")
            self._num += 1
        try:
            yield
        finally:
            with self._changed:
                self._num -= 1
                self._changed.notify_all()

    def refuse(self) -> bool:
        """Let no more in; False where that is so already."""
        with self._changed:
            was_refusing, self._is_refusing = self._is_refusing, True
        return not was_refusing

    def wait(self) -> None:
        """Wait for those that are in."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num)
