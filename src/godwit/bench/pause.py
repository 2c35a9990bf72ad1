"""`godwit bench pause`: what a client sees of a move, live by tokens or KV, against stop-and-recompute."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

import aiohttp
from msgspec import Struct

from godwit.client import move_record
from godwit.config import HeadSettings, Settings, WorkerSettings
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.protocol.entry import MoveRecord
from godwit.streams import TimedStream, follow
from godwit.testbed import Testbed

# The tokens before a move begins (they give the unmoved ITL) and after it has ended.
TOKENS_BEFORE, TOKENS_AFTER = 32, 24
# The window around the handover in which the longest gap counts as the pause: the source is paced before it.
WINDOW_BEFORE, WINDOW_AFTER = 16, 3
ROOM_TOKENS = 2048
NUM_BYSTANDERS = 2


class Spread(Struct, frozen=True):
    """The median and the largest of a few measurements."""

    p50: float
    max: float


class ContextRow(Struct, frozen=True):
    """One context length; all but `itl_ms` are multiples of the unmoved ITL of the same runs.

    `live_handover_over_itl` is the one gap at the handover, `live_pause_over_itl` the longest around it.
    `bystander_…` is the longest gap of another request at the destination, from the move's start to its end.
    """

    context_tokens: int
    itl_ms: float
    live_pause_over_itl: Spread
    live_handover_over_itl: Spread
    live_kv_pause_over_itl: Spread
    live_kv_handover_over_itl: Spread
    stop_recompute_pause_over_itl: Spread
    stop_over_live: float
    rounds_p50: float
    gap_tokens_p50: float
    bystander_max_itl_over_itl: float
    bystander_stop_recompute_max_itl_over_itl: float
    live_pause_with_bystander_over_itl: float


class PauseReport(Struct, frozen=True):
    """All rows; `live_pause_longest_over_shortest` is a ratio of medians, longest to shortest context."""

    engine: str
    model: str
    repeat: int
    contexts: tuple[ContextRow, ...]
    live_pause_longest_over_shortest: float


class Move(Struct, frozen=True):
    """One measured move, in multiples of its own stream's unmoved ITL."""

    itl_s: float
    pause: float
    handover: float
    rounds: int
    gap_tokens: int
    bystander: float | None


class PauseBench:
    """Measures moves of one request at a time on a local cluster of two workers."""

    def __init__(self, cluster: LocalCluster, session: aiohttp.ClientSession, model: str) -> None:
        self._cluster = cluster
        self._session = session
        self._model = model
        self._rng = random.Random(1)

    def _body(self, context_tokens: int) -> dict[str, object]:
        # Ordinary words' ids, drawn anew each time, so that nothing can be reused between runs.
        ids = [self._rng.randrange(300, 20_000) for _ in range(context_tokens)]
        room = {"max_tokens": ROOM_TOKENS, "ignore_eos": True, "temperature": 0}
        return {"model": self._model, "prompt": ids, **room}

    async def measure(
        self, context_tokens: int, *, live: bool, with_bystander: bool, method: str = "tokens"
    ) -> Move:
        """Move one request of `context_tokens` prompt tokens once, and time the gaps around the handover."""
        stream = TimedStream()
        reached = asyncio.Event()
        moved_at: list[int] = []

        def on_token(stream: TimedStream, _: str) -> bool:
            if len(stream.ids) == TOKENS_BEFORE:
                reached.set()
            return not moved_at or len(stream.ids) < moved_at[0] + TOKENS_AFTER

        body = self._body(context_tokens)
        following = asyncio.ensure_future(follow(self._session, self._cluster.url, body, stream, on_token))
        await _first(reached.wait(), following)
        source = await self._owner(stream.request)
        destination = next(name for name in self._cluster.names if name != source)
        async with self._bystander(destination if with_bystander else None) as bystander:
            num_before = len(bystander.ids)
            start = len(stream.ids)
            content = await self._cluster.admin.migrate(stream.request, destination, live=live, method=method)
            record = move_record(content)
            moved_at.append(max(record.num_output, len(stream.ids)))
            await following
            num_after = len(bystander.ids)
        _check(record, stream, method)
        itl_s = stream.median_itl_s(1, start)
        at = record.num_output
        pause_s = max(stream.gaps_s(max(start, at - WINDOW_BEFORE), at + WINDOW_AFTER))
        seen = bystander.gaps_s(num_before, num_after)
        return Move(
            itl_s,
            pause_s / itl_s,
            (stream.times_s[at] - stream.times_s[at - 1]) / itl_s,
            len(record.rounds),
            record.gap_tokens or 0,
            max(seen) / itl_s if seen else None,
        )

    async def _owner(self, request: str) -> str:
        if (owner := await self._cluster.admin.owner(request)) is None:
            raise GodwitError("the measured request ended before its move; lower --contexts")
        return owner

    @contextlib.asynccontextmanager
    async def _bystander(self, worker: str | None) -> AsyncIterator[TimedStream]:
        """A short request that decodes at `worker` meanwhile (None: no bystander)."""
        stream = TimedStream()
        if worker is None:
            yield stream
            return
        decoding = asyncio.Event()

        def on_token(stream: TimedStream, _: str) -> bool:
            if len(stream.ids) == TOKENS_BEFORE:
                decoding.set()
            return True

        task = asyncio.ensure_future(
            follow(self._session, self._cluster.url, self._body(16), stream, on_token)
        )
        try:
            await _first(decoding.wait(), task)
            if await self._owner(stream.request) != worker:
                raise GodwitError(f"the bystander did not start on {worker}; is the cluster idle otherwise?")
            yield stream
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _first(waiting: Awaitable[object], task: "asyncio.Future[TimedStream]") -> None:
    """Wait for an event of a stream that is being followed; raises if the stream ends first."""
    event = asyncio.ensure_future(waiting)
    await asyncio.wait((event, task), return_when=asyncio.FIRST_COMPLETED)
    if not event.done():
        event.cancel()
        raise GodwitError(f"the stream ended early: {(await task).error}")


def _check(record: MoveRecord, stream: TimedStream, method: str) -> None:
    if record.outcome != "done":
        raise GodwitError(f"a move failed: {record.reason}")
    if record.method != method:
        raise GodwitError(f"a move by {method} became one by {record.method}: {record.kv_problem}")
    if stream.error is not None or len(stream.ids) <= record.num_output:
        raise GodwitError(f"the moved stream ended early: {stream.error}")


def _row(
    context_tokens: int,
    live: Sequence[Move],
    shipped: Sequence[Move],
    stopped: Sequence[Move],
    seen: Sequence[Move],
) -> ContextRow:
    """`seen` are the moves beside a bystander: first the live ones, then as many stopped ones."""
    half = len(seen) // 2
    live_seen = [move.bystander for move in seen[:half] if move.bystander is not None]
    stop_seen = [move.bystander for move in seen[half:] if move.bystander is not None]
    live_pause, stop_pause = _spread([m.pause for m in live]), _spread([m.pause for m in stopped])
    return ContextRow(
        context_tokens,
        round(median(m.itl_s for m in (*live, *shipped, *stopped)) * 1e3, 2),
        live_pause,
        _spread([m.handover for m in live]),
        _spread([m.pause for m in shipped]),
        _spread([m.handover for m in shipped]),
        stop_pause,
        round(stop_pause.p50 / live_pause.p50, 1),
        median(m.rounds for m in live),
        median(m.gap_tokens for m in live),
        round(median(live_seen), 1),
        round(median(stop_seen), 1),
        round(median(m.pause for m in seen[:half]), 2),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(round(median(values), 2), round(max(values), 2))


async def run_pause(
    contexts: Sequence[int],
    repeat: int,
    testbed: Testbed,
    progress: Callable[[str], None],
    logs: Path | None = None,
) -> PauseReport:
    """Measure every context length `repeat` times in one run, live and stopped in turn."""
    needed = max(contexts) + ROOM_TOKENS
    settings = Settings(
        head=HeadSettings(port=0),
        worker=WorkerSettings(slots=3, context_tokens=needed),
        models=(testbed.model,),
    )
    rows = []
    async with (
        LocalCluster(settings, 2, logs=logs, sites=testbed.sites) as cluster,
        aiohttp.ClientSession() as session,
    ):
        bench = PauseBench(cluster, session, testbed.model.name)
        await bench.measure(min(contexts), live=True, with_bystander=False)  # warms both workers up
        for context in contexts:
            moves: dict[tuple[bool, bool], list[Move]] = {}
            shipped: list[Move] = []
            for turn in range(repeat):
                # A bystander's wait is the length of a prefill chunk: two measurements tell it.
                for with_bystander in (False, True) if turn < NUM_BYSTANDERS else (False,):
                    for live in (True, False):
                        progress(f"{context} tokens, {turn + 1} of {repeat}")
                        move = await bench.measure(context, live=live, with_bystander=with_bystander)
                        moves.setdefault((live, with_bystander), []).append(move)
                shipped.append(await bench.measure(context, live=True, with_bystander=False, method="kv"))
            seen = moves[True, True] + moves[False, True]
            rows.append(_row(context, moves[True, False], shipped, moves[False, False], seen))
    flat = rows[-1].live_pause_over_itl.p50 / rows[0].live_pause_over_itl.p50
    return PauseReport(testbed.model.engine, testbed.model.name, repeat, tuple(rows), round(flat, 2))
