"""The state of one HTTP request that waits for one or several choices."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from godwit.errors import GodwitError
from godwit.router.openai import Plan
from godwit.router.shapes import Shown, Usage
from godwit.types import Promise, RequestId


class Exchange(ABC):
    """Collects what the choices' sinks say; the handler awaits `accepted`, then `ended`.

    `accepted` is done once the first choice has a server, or raises the error that came before. `ended` is
    done once all choices are through, or nothing more can be said. `close` cancels what still runs.
    `broken` has what those choices did not keep that went on only approximately, by index.
    """

    def __init__(
        self, plan: Plan, cancel: Callable[[RequestId], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._cancel = cancel
        self._running = {choice.index: choice.request for choice in plan.choices}
        self._prompt_index = [choice.prompt_index for choice in plan.choices]
        self._prompt_tokens: dict[int, int] = {}
        self._completion_tokens = 0
        self._accepted: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self.error: GodwitError | None = None
        self.broken: dict[int, list[Promise]] = {}

    async def accepted(self) -> None:
        """Wait for the first choice to have a server; raises what went wrong before."""
        await self._accepted
        if self.error is not None:
            raise self.error

    async def ended(self) -> None:
        """Wait for the end of all choices."""
        await self._ended

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        prompt = sum(self._prompt_tokens.values())
        return Usage(prompt, self._completion_tokens, prompt + self._completion_tokens)

    def accept(self, index: int, num_prompt_tokens: int) -> None:
        """A choice has a server."""
        self._prompt_tokens[self._prompt_index[index]] = num_prompt_tokens
        if not self._accepted.done():
            self._accepted.set_result(None)

    def approximate(self, index: int, broken: Sequence[Promise]) -> None:
        """What follows of a choice is of an engine that could not keep these promises."""
        former = self.broken.setdefault(index, [])
        former += [promise for promise in broken if promise not in former]

    @abstractmethod
    def deliver(self, index: int, text: str, tokens: Sequence[Shown]) -> None:
        """More of a choice's text; `tokens` are those that became visible with it, where asked for."""

    def end(self, index: int, text: str, tokens: Sequence[Shown], reason: str, num_tokens: int) -> None:
        """A choice is through: the last of its text, why, and how many output tokens count."""
        self._running.pop(index, None)
        self._completion_tokens += num_tokens
        self._say_end(index, text, tokens, reason, is_last=not self._running)
        if not self._running:
            self._finish()

    def fail(self, index: int, error: GodwitError) -> None:
        """A choice cannot be completed, so the answer cannot either: the other choices are cancelled."""
        self._running.pop(index, None)
        if self.error is not None or self._ended.done():
            return
        self.error = error
        self.close()
        self._say_error(error)
        self._finish()

    def stop(self, index: int) -> None:
        """Free a choice's slot, since its text is complete."""
        if request := self._running.get(index):
            self._cancel(request)

    def close(self) -> None:
        """Cancel what still runs."""
        running, self._running = self._running, {}
        for request in running.values():
            self._cancel(request)

    @abstractmethod
    def _say_end(
        self, index: int, text: str, tokens: Sequence[Shown], reason: str, *, is_last: bool
    ) -> None: ...

    @abstractmethod
    def _say_error(self, error: GodwitError) -> None: ...

    def _finish(self) -> None:
        for future in (self._accepted, self._ended):
            if not future.done():
                future.set_result(None)
