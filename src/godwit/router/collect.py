"""A whole answer: collected until all choices are through."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from godwit.errors import GodwitError
from godwit.router.exchange import Exchange
from godwit.router.openai import Plan
from godwit.router.shapes import Shape, Shown
from godwit.types import RequestId


class Collection(Exchange):
    """Keeps the choices' text and tokens; an error of one choice is the error of the answer."""

    def __init__(
        self,
        plan: Plan,
        shape: Shape,
        cancel: Callable[[RequestId], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(plan, cancel, loop)
        self._shape = shape
        self._texts: list[list[str]] = [[] for _ in plan.choices]
        self._tokens: list[list[Shown]] = [[] for _ in plan.choices]
        self._choices: dict[int, dict[str, Any]] = {}

    async def body(self) -> bytes:
        """Wait for the end, give the answer's JSON; raises the error that prevented it."""
        await self.ended()
        if self.error is not None:
            raise self.error
        broken = sorted({promise for promises in self.broken.values() for promise in promises})
        return self._shape.whole([choice for _, choice in sorted(self._choices.items())], self.usage, broken)

    def deliver(self, index: int, text: str, tokens: Sequence[Shown]) -> None:
        """See `Exchange`."""
        self._texts[index].append(text)
        self._tokens[index] += tokens

    def _say_end(
        self,
        index: int,
        text: str,
        tokens: Sequence[Shown],
        reason: str,
        *,
        is_last: bool,  # noqa: ARG002 - matters to a stream only
    ) -> None:
        self.deliver(index, text, tokens)
        whole = "".join(self._texts[index])
        self._choices[index] = self._shape.choice(index, whole, self._tokens[index], reason)

    def _say_error(self, error: GodwitError) -> None:
        """`body` raises it."""
