"""The scheduler's decisions as JSON lines, those of the past and those to come: /admin/events."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
from aiohttp import web

from godwit.admin.door import Door
from godwit.errors import BadRequestError, OverloadedError
from godwit.scheduling.eventlog import EventLog, LogEntry

MAX_FOLLOWERS = 32
POLL_S = 0.1
WRITE_S = 10.0
"""A follower that takes nothing for so long is cut."""
MAX_DIGITS = 18
"""A sequence number has no more."""

_LINES_AT_ONCE = 256


class EventAdmin:
    """The handler of /admin/events. `wall_now` and `now` are Unix time and the log's clock, in seconds."""

    def __init__(
        self, log: EventLog, door: Door, *, wall_now: Callable[[], float], now: Callable[[], float]
    ) -> None:
        self._log = log
        self._door = door
        # Taken once, so that a clock that is set does not change the order of what is told.
        self._epoch_s = wall_now() - now()
        self._num_followers = 0
        self._is_closing = asyncio.Event()

    async def close(self, _app: web.Application) -> None:
        """End all followers' streams."""
        self._is_closing.set()

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Decisions after `since`, a sequence number, oldest first; with `follow` those to come as well."""
        self._door.check(request)
        since, follow = _number(request.query.get("since", "0")), request.query.get("follow") == "1"
        if follow and self._num_followers >= MAX_FOLLOWERS:
            raise OverloadedError(f"{MAX_FOLLOWERS} clients follow the events already; end one of them")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        self._num_followers += follow
        try:
            await response.prepare(request)
            async with asyncio.timeout(WRITE_S) as deadline:
                while True:
                    since = await self._write(response, since, deadline)
                    if not follow or self._is_closing.is_set():
                        break
                    await self._pause(deadline)
                await response.write_eof()
        except TimeoutError:
            # Ended without its end, so that nobody takes what has come for everything.
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._num_followers -= follow
        return response

    async def _write(self, response: web.StreamResponse, since: int, deadline: asyncio.Timeout) -> int:
        """Write what came after `since`; gives the last sequence number."""
        for lines, last in self._batches(since):
            deadline.reschedule(asyncio.get_running_loop().time() + WRITE_S)
            await response.write(lines)
            since = last
        return since

    async def _pause(self, deadline: asyncio.Timeout) -> None:
        deadline.reschedule(None)
        try:
            async with asyncio.timeout(POLL_S):
                await self._is_closing.wait()
        except TimeoutError:
            pass
        deadline.reschedule(asyncio.get_running_loop().time() + WRITE_S)

    def _batches(self, since: int) -> Iterator[tuple[bytes, int]]:
        entries = self._log.entries(since)
        for first in range(0, len(entries), _LINES_AT_ONCE):
            batch = entries[first : first + _LINES_AT_ONCE]
            yield b"".join(self._line(entry) for entry in batch), batch[-1].seq

    def _line(self, entry: LogEntry) -> bytes:
        at = datetime.fromtimestamp(self._epoch_s + entry.at_s, UTC).isoformat(timespec="milliseconds")
        told = {"seq": entry.seq, "at": at, **msgspec.to_builtins(entry)}
        return msgspec.json.encode(told) + b"\n"


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise BadRequestError(f"since: a sequence number, not {text!r}", param="since")
    return int(text)
