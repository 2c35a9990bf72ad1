"""The fake engines of `relay.py`: workers on real links whose every step is one frame, one token a stream."""

import asyncio
import time
from collections.abc import Mapping

import aiohttp
from msgspec import Struct

from godwit.bench.relay_clients import TEXTS, Client
from godwit.errors import LinkError
from godwit.protocol.message import Message
from godwit.protocol.messages import (
    Accepted,
    Alive,
    Hello,
    Stop,
    Submit,
    TokenEvent,
    Tokens,
    Welcome,
)
from godwit.protocol.wire import decode_from_head, encode
from godwit.runtime.link import Link, dial
from godwit.types import ChatPrompt, Epoch, ModelInfo, ModelName, RequestId, WorkerId

DEAD_AFTER_S = 30.0
TOKENS_PER_S = 50.0
# What a step may find unsent, in bytes: enough that the head never waits, small enough not to pile up.
MAX_UNSENT_BYTES = 64 * 1024
FULL_WAIT_S = 0.0005


class Output(Struct):
    """One request at an engine."""

    request: RequestId
    epoch: Epoch
    client: Client
    num_sent: int = 0


class FakeEngine:
    """One worker. Its mode says when it steps.

    "lockstep": once its clients have read all tokens of the step before; "paced": `TOKENS_PER_S` times a
    second; "flooded": whenever the link has room.
    """

    def __init__(self, number: int, num_engines: int, mode: str, clients: Mapping[int, Client]) -> None:
        self._name = WorkerId(f"relay-{number}")
        self._phase = number / num_engines
        self._mode = mode
        self._clients = clients
        self._link: Link | None = None
        self._is_going = False
        self._num_unread = 0
        self.outputs: dict[RequestId, Output] = {}
        self.has_joined = False

    async def run(self, session: aiohttp.ClientSession, url: str) -> str:
        """Join the head and serve until the link ends; returns why it did."""
        link = self._link = await dial(session, f"{url}/link", None, DEAD_AFTER_S)
        model = ModelInfo(ModelName("relay"), "none", 1 << 30, 1, is_loaded=True, has_chat_template=True)
        self._send(Hello(self._name, time.time_ns(), 1 << 20, 1, (model,), None))
        tasks = [asyncio.ensure_future(self._beat())]
        if self._mode != "lockstep":
            tasks.append(asyncio.ensure_future(self._pace() if self._mode == "paced" else self._flood()))
        try:
            return await link.run(self._on_frame)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def go(self) -> None:
        """All requests are here: start to generate."""
        self._is_going = True
        if self._mode == "lockstep":
            self._step()

    def finish(self) -> None:
        """Generate nothing more, and end all requests."""
        self._is_going = False
        ends = [TokenEvent(o.request, o.epoch, o.num_sent, [], [], "length") for o in self.outputs.values()]
        self._send(Tokens(ends))

    def on_read(self, count: int) -> None:
        """A client has read `count` tokens."""
        self._num_unread -= count
        if self._mode == "lockstep" and self._num_unread == 0 and self._is_going:
            self._step()

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(encode(message))

    def _on_frame(self, frame: bytes) -> None:
        message = decode_from_head(frame)
        match message:
            case Submit(prompt=ChatPrompt(messages=messages)):
                client = self._clients[int(messages[0].content)]
                self.outputs[message.request] = Output(message.request, message.epoch, client)
                self._send(Accepted(message.request, message.epoch, (1, 2, 3)))
            case Stop():
                self.outputs.pop(message.request, None)
            case Welcome():
                self.has_joined = True
            case _:
                raise LinkError(f"a fake engine cannot {type(message).__name__}")

    def _step(self) -> None:
        events = []
        now_s = time.monotonic()
        for output in self.outputs.values():
            index = output.num_sent
            text = TEXTS[index % len(TEXTS)]
            events.append(TokenEvent(output.request, output.epoch, index, [1000 + index % 30000], [text]))
            output.num_sent = index + 1
            output.client.sent_s.append(now_s)
        self._num_unread += len(events)
        self._send(Tokens(events))

    async def _pace(self) -> None:
        loop = asyncio.get_running_loop()
        period_s = 1 / TOKENS_PER_S
        next_s = loop.time() + self._phase * period_s
        while True:
            await asyncio.sleep(next_s - loop.time())
            next_s += period_s
            if self._is_going:
                self._step()

    async def _flood(self) -> None:
        while True:
            if self._link is None or self._link.unsent_bytes > MAX_UNSENT_BYTES or not self._is_going:
                await asyncio.sleep(FULL_WAIT_S)
            else:
                self._step()
                # The link's writer, the clients and the other engines want their turn.
                await asyncio.sleep(0)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._send(Alive(is_stalled=False))
