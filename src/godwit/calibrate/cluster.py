"""A running cluster as a calibration uses it: streams on a worker of choice, and moves. Public APIs only."""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp

from godwit.client import AdminClient, move_record
from godwit.errors import GodwitError, LinkError, UnavailableError
from godwit.protocol.entry import MoveRecord
from godwit.streams import TimedStream, follow

FIRST_TOKEN_S = 300.0
TOKEN_S = 60.0
MOVE_S = 300.0
CLEAN_UP_S = 10.0
_POLL_S = 0.05
# Ids that every usual vocabulary has; below are bytes and control tokens.
_FIRST_ID, _LAST_ID = 300, 1000


@dataclass(eq=False, slots=True)
class Held:
    """A stream that is open: who follows it, what came, and where it is as far as is known."""

    timed: TimedStream
    model: str
    prompt_tokens: int
    max_tokens: int
    sent_s: float
    worker: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def num(self) -> int:
        """Tokens that have come."""
        return len(self.timed.ids)

    @property
    def left(self) -> int:
        """Tokens that may still come."""
        return 0 if self.is_over else self.max_tokens - self.num

    @property
    def is_over(self) -> bool:
        """Whether no more tokens come."""
        return self.task is None or self.task.done()

    async def has(self, num: int, timeout_s: float = TOKEN_S) -> None:
        """Wait until `num` tokens have come; GodwitError where the stream ends first, or nothing comes."""
        while self.num < num:
            self.changed.clear()
            if self.is_over:
                self.raise_end()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.changed.wait()
            except TimeoutError as error:
                raise UnavailableError(f"no token came within {timeout_s:.0f} s") from error

    def raise_end(self) -> None:
        """GodwitError that says why the stream is over."""
        if (
            self.task is not None
            and not self.task.cancelled()
            and (error := self.task.exception()) is not None
        ):
            raise error
        reason = self.timed.error or f"it ended after {self.num} tokens"
        raise UnavailableError(f"a measured request is over: {reason}")


class Cluster:
    """An async context manager: leaving it, however that happens, ends all streams that it opened."""

    def __init__(self, url: str, admin: AdminClient, session: aiohttp.ClientSession) -> None:
        self._url = url.rstrip("/")
        self.admin = admin
        self._session = session
        self._random = random.Random(1)
        self._held: set[Held] = set()
        self._ids: set[str] = set()

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(*self._held)
        # The head notices a moment later that its client has left; slots must be free when this returns.
        with contextlib.suppress(TimeoutError, GodwitError):
            async with asyncio.timeout(CLEAN_UP_S):
                while self._ids & (await self.owners()).keys():  # noqa: ASYNC110 -- only the head knows
                    await asyncio.sleep(_POLL_S)

    def send(self, model: str, prompt_tokens: int, max_tokens: int) -> Held:
        """Ask for a stream; returns at once."""
        ids = [self._random.randrange(_FIRST_ID, _LAST_ID) for _ in range(prompt_tokens)]
        room = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        held = Held(TimedStream(), model, prompt_tokens, max_tokens, time.monotonic())
        held.task = asyncio.create_task(self._follow(held, {"model": model, "prompt": ids, **room}))
        self._held.add(held)
        return held

    async def open(self, model: str, prompt_tokens: int, max_tokens: int, worker: str | None = None) -> Held:
        """A stream that has its first token and is on `worker` (None: wherever the head starts it)."""
        held = self.send(model, prompt_tokens, max_tokens)
        try:
            await held.has(1, FIRST_TOKEN_S)
            held.worker = await self._owner(held)
            if worker is not None and held.worker != worker:
                await self.move(held, worker, "tokens")
        except GodwitError:
            await self.close(held)
            raise
        return held

    async def move(self, held: Held, to: str, method: str) -> MoveRecord:
        """Move a stream; GodwitError where that fails."""
        answer = await self.admin.migrate(held.timed.request, to, method=method, timeout_s=MOVE_S)
        record = move_record(answer)
        if record.outcome != "done":
            raise UnavailableError(f"a move from {record.source} to {to} failed: {record.reason}")
        held.worker = to
        return record

    async def close(self, *streams: Held) -> None:
        """Leave these streams, so that the head cancels them."""
        tasks = [held.task for held in streams if held.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._held.difference_update(streams)

    async def owners(self) -> dict[str, str]:
        """Worker by request, of those that run."""
        return {one.id: one.worker for one in (await self.admin.status()).requests if one.worker is not None}

    async def _owner(self, held: Held) -> str:
        owner = (await self.owners()).get(held.timed.request)
        if owner is None and held.is_over:
            held.raise_end()
        if owner is None:
            raise UnavailableError("a measured request lost its worker")
        return owner

    async def _follow(self, held: Held, body: dict[str, object]) -> None:
        def on_token(stream: TimedStream, _: str) -> bool:
            self._ids.add(stream.request)
            held.changed.set()
            return True

        try:
            await follow(self._session, self._url, body, held.timed, on_token)
        except aiohttp.ClientError as error:
            raise LinkError(f"the connection to the head at {self._url} broke: {error}") from error
        finally:
            held.changed.set()
