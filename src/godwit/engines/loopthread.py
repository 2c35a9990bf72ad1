"""An event loop in a thread of its own, told what to do from any thread."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_END_S = 30.0


class LoopThread:
    """Runs calls in order, and tasks. `on_broken` is told in the loop what a call raised.

    `at_end` runs in the loop as the last, when all tasks have been cancelled.
    """

    def __init__(
        self,
        name: str,
        at_end: Callable[[], Coroutine[Any, Any, None]],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._at_end = at_end
        self._on_broken = on_broken
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def start(self) -> None:
        """Start the thread; what it was told before is done then."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel all tasks and end the thread; returns when both are done. Once only."""
        if self._thread is None:
            self._end()
            return
        self.call(self._loop.stop)
        self._thread.join()

    def call(self, act: Callable[[], object]) -> None:
        """Run `act` in the loop, from any thread; ignored after the end."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._do, act)

    def spawn(self, doing: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None] | None:
        """A task that does this, in the loop's thread only; None where the end has begun."""
        if self._is_ending:
            return None
        task = self._loop.create_task(doing())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _do(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # the loop's top: whatever it is, somebody must hear of it
            self._on_broken(error)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._end()

    def _end(self) -> None:
        self._is_ending = True
        try:
            self._loop.run_until_complete(self._last())
        finally:
            self._loop.close()

    async def _last(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_S)
        await self._at_end()
