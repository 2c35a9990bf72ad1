"""A client that notes when each token of a stream arrived."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import aiohttp
import msgspec

from godwit.errors import GodwitError, LinkError, from_code

SILENCE_S = 300.0


@dataclass(slots=True)
class TimedStream:
    """One streamed request. `times_s[i]` is when token i arrived, on the monotonic clock.

    Several tokens that came in one event share their time. `error` is what the server said, if it failed.
    """

    request: str = ""
    ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    completion_tokens: int | None = None
    error: str | None = None

    def gaps_s(self, start: int = 0, end: int | None = None) -> list[float]:
        """The gaps before the tokens `start` and on, up to `end`; the first token has none."""
        times = self.times_s
        last = len(times) if end is None else min(end, len(times))
        return [times[i] - times[i - 1] for i in range(max(1, start), last)]

    def median_itl_s(self, start: int = 0, end: int | None = None) -> float:
        """The median gap; NaN where there is none."""
        gaps = self.gaps_s(start, end)
        return median(gaps) if gaps else float("nan")


async def follow(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    stream: TimedStream,
    on_token: Callable[[TimedStream, str], bool] = lambda *_: True,
    silence_s: float = SILENCE_S,
) -> TimedStream:
    """Ask for a streamed completion (chat where `body` has messages) and note every token in `stream`.

    `on_token` is called after each event with its text; when it returns False the client leaves, and so it
    does when nothing comes for `silence_s`. Raises
    what the server answered where it refused the request; an error in the stream is put into `stream`.
    """
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=silence_s)
    async with session.post(url + path, json=asked, timeout=timeout) as response:
        if response.status != 200:
            raise _refusal(await response.read())
        stream.request = response.headers["x-request-id"]
        async for line in response.content:
            now = time.monotonic()
            if not line.startswith(b"data: {"):
                continue
            if not _take(stream, msgspec.json.decode(line[6:]), now, on_token):
                break
    return stream


def _take(
    stream: TimedStream, event: dict[str, Any], now: float, on_token: Callable[[TimedStream, str], bool]
) -> bool:
    if (error := event.get("error")) is not None:
        stream.error = str(error["message"])
        return False
    if (usage := event.get("usage")) is not None:
        stream.completion_tokens = usage["completion_tokens"]
    for choice in event["choices"]:
        ids = choice.get("token_ids") or []
        text = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        stream.ids += ids
        stream.times_s += [now] * len(ids)
        stream.text += text
        stream.finish_reason = choice["finish_reason"] or stream.finish_reason
        if ids and not on_token(stream, text):
            return False
    return True


def _refusal(content: bytes) -> GodwitError:
    try:
        error = msgspec.json.decode(content)["error"]
        return from_code(error["code"] or "", error["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return LinkError("the answer is not that of a Godwit head")
