"""The clients of `relay.py`: each streams one answer, notes how late each token is, and checks all."""

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import cast

import msgspec
from msgspec import Struct

MARK = b"~"
"""The last byte of every token and of nothing else, so that a client counts tokens without parsing."""

_WORDS = [
    " the",
    " of",
    " and",
    " router",
    " to",
    " naïve",
    " in",
    "\n",
    " stream",
    " is",
    "ing",
    " token",
    " €",
    " for",
    ".",
    '"x"',
]
TEXTS = [word.encode() + MARK for word in _WORDS]
"""What fake engines say, over and over: some of it needs escapes, some several bytes a character."""

_END = b"0\r\n\r\n"


class ClientError(Exception):
    """A client did not receive what its engine sent."""


class _Delta(Struct):
    content: str = ""


class _Choice(Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Chunk(Struct):
    choices: list[_Choice]


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Client(asyncio.Protocol):
    """One connection with one streamed request; `on_tokens` hears how many tokens a read brought.

    `sent_s[n]` is when the engine wrote token n, and belongs to the engine. Only while `is_measured` does a
    token's delay go to `delays_s`.
    """

    def __init__(self, number: int, on_tokens: Callable[["Client", int], None]) -> None:
        self.number = number
        self.num_received = 0
        self.is_measured = False
        self.sent_s = array("d")
        self.delays_s = array("d")
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_tokens = on_tokens
        self._reads: list[bytes] = []
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request; the prompt tells the engine whose it is."""
        self._transport = transport
        message = {"role": "user", "content": str(self.number)}
        body = msgspec.json.encode({"model": "relay", "messages": [message], "stream": True})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: relay\r\nContent-Type: application/json\r\n"
        # uvloop's transports are no subclasses of asyncio's.
        cast(asyncio.Transport, transport).write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def data_received(self, data: bytes) -> None:
        """Count the tokens, time them, keep the bytes: they are parsed once nobody is measuring."""
        now_s = time.monotonic()
        self._reads.append(data)
        if count := data.count(MARK):
            first = self.num_received
            self.num_received = first + count
            if self.is_measured:
                self.delays_s.extend([now_s - sent_s for sent_s in self.sent_s[first : first + count]])
            self._on_tokens(self, count)
        # The headers may end in the same bytes, but come before the first token.
        if data.endswith(_END) and self.num_received and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that closes before its answer is whole is an error."""
        if not self.ended.done():
            self.ended.set_exception(ClientError(f"client {self.number} was cut: {exc or 'closed'}"))

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.close()
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()
        else:
            self.ended.cancel()

    def check(self, num_sent: int) -> int:
        """ClientError unless all `num_sent` tokens came, once and in order; how many events had text."""
        status, _, body = b"".join(self._reads).partition(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 200"):
            raise ClientError(f"client {self.number}: {status[:80]!r} {body[:400]!r}")
        if (error := self.ended.exception()) is not None:
            raise error
        events = [line[6:] for line in _unchunked(body).split(b"\n\n") if line]
        if events.pop() != b"[DONE]":
            raise ClientError(f"client {self.number}: the stream has no [DONE]")
        choices = [_decode_chunk(event).choices[0] for event in events]
        texts = [choice.delta.content for choice in choices if choice.delta.content]
        if "".join(texts).encode() != _expected(num_sent) or choices[-1].finish_reason != "length":
            raise ClientError(f"client {self.number}: {num_sent} tokens were sent, others came")
        return len(texts)


def _expected(num_tokens: int) -> bytes:
    times, rest = divmod(num_tokens, len(TEXTS))
    return b"".join(TEXTS) * times + b"".join(TEXTS[:rest])


def _unchunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    start = 0
    while True:
        line_end = body.index(b"\r\n", start)
        size = int(body[start:line_end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line_end + 2 : line_end + 2 + size])
        start = line_end + 4 + size
