"""A streamed answer: server-sent events, written straight to the connection as the sinks flush."""

import asyncio
from collections.abc import Callable, Sequence

from godwit.errors import GodwitError
from godwit.router.exchange import Exchange
from godwit.router.openai import Plan
from godwit.router.shapes import Shape, Shown, encode_json, error_body
from godwit.types import RequestId

DONE = b"data: [DONE]\n\n"


class EventStream(Exchange):
    """Writes one event per flush, without waking the handler: that would double the cost of a token.

    A client whose unread bytes exceed `max_unread_bytes` is cut: its choices are cancelled, its connection
    is dropped, and `on_slow_reader` is called. An error after `open` becomes an event, then [DONE] follows.
    """

    def __init__(
        self,
        plan: Plan,
        shape: Shape,
        cancel: Callable[[RequestId], None],
        loop: asyncio.AbstractEventLoop,
        *,
        max_unread_bytes: int,
        on_slow_reader: Callable[[], None],
    ) -> None:
        super().__init__(plan, cancel, loop)
        self._shape = shape
        self._has_usage = plan.has_usage
        self._heads = [shape.head(choice.index) for choice in plan.choices]
        self._tail = shape.tail()
        self._early: list[bytes] = [shape.opening(choice.index) or b"" for choice in plan.choices]
        self._transport: asyncio.Transport | None = None
        self._is_chunked = True
        self._max_unread_bytes = max_unread_bytes
        self._on_slow_reader = on_slow_reader

    def open(self, transport: asyncio.Transport, *, is_chunked: bool) -> None:
        """The headers are out: write what came so far, and from now on everything at once."""
        self._transport = transport
        self._is_chunked = is_chunked
        early, self._early = b"".join(self._early), []
        if early:
            self._write(early)

    def deliver(self, index: int, text: str, tokens: Sequence[Shown]) -> None:
        """See `Exchange`."""
        tail = self._shape.tail(tokens) if tokens else self._tail
        self._write(b"%b%b%b" % (self._heads[index], encode_json(text), tail))

    def _say_end(self, index: int, text: str, tokens: Sequence[Shown], reason: str, *, is_last: bool) -> None:
        broken = self.broken.get(index, ())
        events = [self._heads[index], encode_json(text), self._shape.tail(tokens, reason, broken)]
        if is_last and self._has_usage:
            events.append(self._shape.usage_chunk(self.usage))
        if is_last:
            events.append(DONE)
        self._write(b"".join(events))

    def _say_error(self, error: GodwitError) -> None:
        self._write(b"data: %b\n\n%b" % (error_body(error), DONE))

    def _write(self, events: bytes) -> None:
        transport = self._transport
        if transport is None:
            self._early.append(events)
            return
        if transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._is_chunked else events)
        if transport.get_write_buffer_size() > self._max_unread_bytes:
            self.cut()

    def cut(self) -> None:
        """Drop the connection of a client that does not read, and cancel its choices."""
        self._on_slow_reader()
        self.close()
        if self._transport is not None:
            # The transport's close() would wait for the client.
            self._transport.abort()
        self._finish()
