"""A client's streamed request: everything that it was sent, in a form that two answers can be compared in."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from tests.patience import DEADLINE_S


@dataclass(slots=True)
class Choice:
    """One choice: `logprobs` is OpenAI's, flattened to one entry a token."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(slots=True)
class Answer:
    """All that a client knows of one answer; equal answers are equal to the client."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    error: str | None = None
    is_done: bool = False
    godwit: dict[str, Any] | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Add one event of a stream, or a whole answer."""
        if "error" in event:
            self.error = event["error"]["message"]
            return
        self.usage = event.get("usage") or self.usage
        self.godwit = event.get("godwit") or self.godwit
        for part in event["choices"]:
            choice = self.choices.setdefault(part["index"], Choice())
            message = part.get("delta") or part.get("message")
            choice.text += part["text"] if message is None else message.get("content") or ""
            choice.ids += part.get("token_ids") or []
            choice.logprobs += _entries(part.get("logprobs"))
            choice.finish_reason = part["finish_reason"] or choice.finish_reason

    @property
    def only(self) -> Choice:
        """The one choice of a request with n = 1."""
        (choice,) = self.choices.values()
        return choice


class Stream:
    """One request, read by a task of its own; `request` is its id once the answer has begun."""

    def __init__(self, session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> None:
        self.answer = Answer()
        self.request = ""
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._read(session, url, body))

    async def begun(self) -> str:
        """Wait for the response's headers: the request's id."""
        return await self._until(lambda: bool(self.request))

    async def has(self, num_tokens: int) -> str:
        """Wait until so many tokens of each choice have come; returns the request's id."""
        return await self._until(
            lambda: (
                bool(choices := self.answer.choices)
                and all(len(one.ids) >= num_tokens for one in choices.values())
            )
        )

    async def has_chars(self, num_chars: int) -> str:
        """Wait until so much text has come; returns the request's id."""
        return await self._until(
            lambda: sum(len(choice.text) for choice in self.answer.choices.values()) >= num_chars
        )

    async def end(self) -> Answer:
        """Read to the end."""
        async with asyncio.timeout(DEADLINE_S):
            await self._task
        return self.answer

    async def leave(self) -> None:
        """Drop the connection."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def abandon(self) -> None:
        """Stop reading, if it still goes on; how it ended concerns nobody, in this test or in a later one."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()

    async def _until(self, is_so: Any) -> str:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                if self._task.done():
                    self._task.result()
                    raise AssertionError(f"the stream ended early: {self.answer}")
                self._grew.clear()
                await self._grew.wait()
        return self.request

    async def _read(self, session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> None:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        asked = {"return_token_ids": True, "stream": True, **body}
        if asked["stream"]:
            asked["stream_options"] = {"include_usage": True}
        try:
            async with session.post(url + path, json=asked) as response:
                self.request = response.headers["x-request-id"]
                self._grew.set()
                if response.content_type != "text/event-stream":
                    self.answer.take(await response.json())
                    self.answer.is_done = True
                    return
                async for line in response.content:
                    self._take(line)
        finally:
            self._grew.set()

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data: "):
            return
        assert not self.answer.is_done, f"after [DONE]: {line!r}"
        if line.strip() == b"data: [DONE]":
            self.answer.is_done = True
        else:
            self.answer.take(msgspec.json.decode(line[6:]))
        self._grew.set()


def _entries(logprobs: dict[str, Any] | None) -> list[Any]:
    """One entry a token, of chat's shape or of the text completions'."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] for name in names), strict=True))
