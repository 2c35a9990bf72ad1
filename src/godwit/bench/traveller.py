"""One running request at a time that is moved back and forth between two workers, for measurements."""

import asyncio
import random
from collections.abc import Callable, Sequence

import aiohttp

from godwit.client import move_record
from godwit.costs.choice import AUTO
from godwit.costs.crossover import Method
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.protocol.entry import MoveRecord
from godwit.streams import TimedStream, follow

ROOM_TOKENS = 3072
"""What a request may draw: at the source of a slow live move, most of all."""

FIRST_TOKENS = 2
_START_S = 600.0
_END_S = 60.0
_MOVE_S = 1300.0
# A context that has grown by more than this share, or (short ones) by so many tokens, is made anew.
_GROWTH, _GROWTH_TOKENS = 0.05, 8


class Traveller:
    """An async context manager; outside of it, its request is gone. `say` hears what went wrong."""

    def __init__(
        self, cluster: LocalCluster, session: aiohttp.ClientSession, model: str, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._session = session
        self._model = model
        self._say = say
        self._rng = random.Random(1)
        self._stream = TimedStream()
        self._following: asyncio.Future[TimedStream] | None = None
        self._num_prompt = 0
        self._worker = ""

    async def __aenter__(self) -> "Traveller":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._leave()

    async def move(self, context_tokens: int, method: str, *, live: bool, tries: int = 3) -> MoveRecord:
        """Move a request of about `context_tokens` tokens by `method` to the other worker.

        A move that failed, or that shipped no KV although it was to, is made anew with a new request;
        GodwitError after so many tries.
        """
        reason = ""
        for _ in range(tries):
            try:
                record = await self._try(context_tokens, method, live=live)
                if (problem := _problem(record, method)) is None:
                    return record
            except (GodwitError, aiohttp.ClientError, OSError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            reason = f"a {method} move of {context_tokens} tokens: {problem}"
            self._say(reason)
            await self._leave()
        raise GodwitError(reason)

    async def _try(self, context_tokens: int, method: str, *, live: bool) -> MoveRecord:
        if not self._fits(context_tokens):
            await self._renew(context_tokens)
        to = next(name for name in self._cluster.names if name != self._worker)
        content = await self._cluster.admin.migrate(
            self._stream.request, to, live=live, method=method, timeout_s=_MOVE_S
        )
        record = move_record(content)
        if record.outcome == "done":
            self._worker = to
        return record

    def _fits(self, context_tokens: int) -> bool:
        """Whether there is a request, and its context is still about this long."""
        if self._following is None or self._following.done():
            return False
        grown = self._num_prompt + len(self._stream.ids) - context_tokens
        return 0 <= grown <= max(_GROWTH_TOKENS, _GROWTH * context_tokens)

    async def _renew(self, context_tokens: int) -> None:
        await self._leave()
        self._stream, self._num_prompt = TimedStream(), max(context_tokens - FIRST_TOKENS, 1)
        decoding = asyncio.Event()

        def on_token(stream: TimedStream, _: str) -> bool:
            if len(stream.ids) >= FIRST_TOKENS:
                decoding.set()
            return True

        # Ordinary words' ids, drawn anew each time, so that nothing can be reused between requests.
        ids = [self._rng.randrange(300, 20_000) for _ in range(self._num_prompt)]
        body = {"model": self._model, "prompt": ids, "max_tokens": ROOM_TOKENS, "ignore_eos": True}
        following = asyncio.ensure_future(
            follow(self._session, self._cluster.url, body | {"temperature": 0}, self._stream, on_token)
        )
        self._following = following
        event = asyncio.ensure_future(decoding.wait())
        try:
            await asyncio.wait((event, following), timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                why = (await following).error if following.done() else f"no token within {_START_S:.0f} s"
                raise GodwitError(f"the request to be moved did not start: {why}")
        finally:
            event.cancel()
        self._worker = await self._owner()

    async def _owner(self) -> str:
        if (owner := await self._cluster.admin.owner(self._stream.request)) is None:
            raise GodwitError("the request to be moved has ended")
        return owner

    async def _leave(self) -> None:
        """Drop the request, and wait until no worker has it."""
        if (following := self._following) is None:
            return
        self._following = None
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        try:
            await self._cluster.until(lambda status: not status.requests, _END_S)
        except TimeoutError as error:
            raise GodwitError(
                f"a request that its client left is still there after {_END_S:.0f} s"
            ) from error


def _problem(record: MoveRecord, method: str) -> str | None:
    if record.outcome != "done":
        return record.reason or "it failed"
    # A split of a short context may have nothing to ship: the last token of a context has no KV.
    if record.kv_problem is not None and not (method in (Method.SPLIT, AUTO) and record.kv_bytes == 0):
        return f"no KV was shipped: {record.kv_problem}"
    if method == Method.KV and not record.kv_tokens:
        return "no KV was shipped"
    if record.actual is None or record.actual.ready_s is None:
        return "it was not timed"
    return None


def ready_s(records: Sequence[MoveRecord]) -> list[float]:
    """Seconds from each move's start until its destination could decode."""
    return [r.actual.ready_s for r in records if r.actual is not None and r.actual.ready_s is not None]
