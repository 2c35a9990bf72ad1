"""Which requests hold the slots of one engine, as its callers see it: before the commands are done."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from godwit.errors import ConflictError, EngineError, NoFreeSlotError
from godwit.types import ModelName, RequestId


class SlotBook:
    """Counts slots from any thread. Commands are queued inside `taking` and `releasing`, in order."""

    def __init__(self, num: int, model: ModelName) -> None:
        self.num = num
        self._model = model
        self._guard = threading.Lock()
        self._taken: set[RequestId] = set()
        self._refusal: str | None = None

    @property
    def num_free(self) -> int:
        return self.num - len(self._taken)

    def refuse(self, reason: str) -> bool:
        """Take nothing from now on; False where that is so already, for a reason that stays."""
        with self._guard:
            if self._refusal is not None:
                return False
            self._refusal = reason
            return True

    @contextmanager
    def taking(self, request: RequestId) -> Iterator[None]:
        """A slot for `request`, taken if the block ends well; NoFreeSlotError, ConflictError, EngineError."""
        with self._guard:
            if self._refusal is not None:
                raise EngineError(self._refusal)
            if request in self._taken:
                raise ConflictError(f"request {request} has a slot already")
            if not self.num_free:
                raise NoFreeSlotError(f"all {self.num} slots of {self._model} are taken")
            yield
            self._taken.add(request)

    @contextmanager
    def releasing(self, request: RequestId) -> Iterator[bool]:
        """Whether `request` has a slot; it counts as free after the block."""
        with self._guard:
            yield request in self._taken
            self._taken.discard(request)
