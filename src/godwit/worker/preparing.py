"""What takes long before a request enters its engine, done in a thread so that the worker's link lives on.

A worker that is busy for longer than the link's deadline counts as dead, and the request that kept it busy
would go to the next one: one long prompt would take down worker after worker.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from godwit.errors import GodwitError
from godwit.ports import Engine
from godwit.protocol.messages import Submit
from godwit.protocol.worker import prompt_ids
from godwit.types import ChatPrompt, Prompt, TextPrompt, TokenPrompt

QUICK_CHARS = 8192


def is_quick(order: Submit) -> bool:
    """Whether preparing the request takes no longer than a few milliseconds."""
    sampling = order.sampling
    has_grammar = sampling.grammar is not None or sampling.json_schema is not None
    return not has_grammar and _num_chars(order.prompt) <= QUICK_CHARS


def _num_chars(prompt: Prompt) -> int:
    match prompt:
        case TextPrompt():
            return len(prompt.text)
        case ChatPrompt():
            return sum(len(message.content) for message in prompt.messages)
        case _:
            return 0


class Preparing:
    """Prepares one request at a time, in the order of their arrival."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "prepare")
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        order: Submit,
        engine: Engine,
        ready: Callable[[Submit], None],
        refused: Callable[[GodwitError], None],
    ) -> None:
        """Call `ready` later with an order whose prompt is token ids, or `refused`."""
        task = asyncio.get_running_loop().create_task(self._prepare(order, engine, ready, refused))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop_all(self) -> None:
        """Forget what is being prepared; nothing is called for it any more."""
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """The same, for good."""
        self.drop_all()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _prepare(
        self,
        order: Submit,
        engine: Engine,
        ready: Callable[[Submit], None],
        refused: Callable[[GodwitError], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, engine.try_out, order.sampling)
            ids = await loop.run_in_executor(self._thread, prompt_ids, engine, order.prompt)
        except GodwitError as error:
            refused(error)
        else:
            ready(replace(order, prompt=TokenPrompt(ids)))
