"""`godwit bench continuation`: whether a moved request goes on with exactly the tokens of an unmoved one."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import aiohttp
from msgspec import Struct

from godwit.client import move_record
from godwit.config import HeadSettings, ModelSettings, Settings, WorkerSettings
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.protocol.entry import MoveRecord
from godwit.streams import TimedStream, follow

METHODS = ("kv", "split", "tokens")
EXACT = "kv"
"""The method of which every request must be identical: nothing is computed anew."""
MIN_PROMPT, MAX_PROMPT = 64, 300
FIRST_CUT, LAST_CUT = 2, 32
"""A request is ordered to move once it has between so many output tokens."""
TOKENS_AFTER = 24
"""So many are compared after the handover; those that the source draws before it come on top."""
ROOM_TOKENS = 600
GREEDY: dict[str, object] = {"temperature": 0}
SEEDED: dict[str, object] = {"temperature": 0.9, "top_p": 0.95}


class Share(Struct, frozen=True):
    """How many of the moved requests were the unmoved ones, token by token."""

    identical: int
    of: int


class MethodRow(Struct, frozen=True):
    """One method."""

    method: str
    greedy: Share
    seeded: Share


class ContinuationReport(Struct, frozen=True):
    """All methods; `ok` says that every request that moved by `kv` was identical."""

    model: str
    methods: tuple[MethodRow, ...]
    ok: bool


class ContinuationBench:
    """Asks for each request twice, one at a time: moved once on its way, and undisturbed."""

    def __init__(self, cluster: LocalCluster, session: aiohttp.ClientSession, model: str) -> None:
        self._cluster = cluster
        self._session = session
        self._model = model
        self._rng = Random(1)

    async def is_identical(self, method: str, body: dict[str, object]) -> bool:
        """Whether a request that moved by `method` drew what the same request did undisturbed."""
        moved, record = await self._moved(method, body)
        if record.outcome != "done" or moved.error is not None:
            raise GodwitError(f"a move failed: {record.reason} {moved.error or ''}")
        if record.method != method:
            raise GodwitError(f"a move by {method} became {record.method}: {record.kv_problem}")
        if len(moved.ids) <= record.num_output:
            raise GodwitError(f"the request ended as it moved, after {len(moved.ids)} tokens")
        again = {**body, "max_tokens": len(moved.ids)}
        unmoved = await follow(self._session, self._cluster.url, again, TimedStream())
        if unmoved.error is not None or len(unmoved.ids) != len(moved.ids):
            raise GodwitError(f"the unmoved one ended after {len(unmoved.ids)} tokens: {unmoved.error}")
        return moved.ids == unmoved.ids

    def body(self, sampling: dict[str, object], number: int) -> dict[str, object]:
        """A request with a new prompt of ordinary words' ids; `number` is its seed."""
        ids = [self._rng.randrange(300, 20_000) for _ in range(self._rng.randint(MIN_PROMPT, MAX_PROMPT))]
        room = {"max_tokens": ROOM_TOKENS, "ignore_eos": True, "seed": number}
        return {"model": self._model, "prompt": ids, **room, **sampling}

    async def _moved(self, method: str, body: dict[str, object]) -> tuple[TimedStream, MoveRecord]:
        """What the client got up to a few tokens after the handover."""
        stream, reached = TimedStream(), asyncio.Event()
        cut, last = self._rng.randint(FIRST_CUT, LAST_CUT), ROOM_TOKENS

        def on_token(stream: TimedStream, _: str) -> bool:
            if len(stream.ids) >= cut:
                reached.set()
            return len(stream.ids) < last

        async def read() -> None:
            try:
                await follow(self._session, self._cluster.url, body, stream, on_token)
            finally:
                reached.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            await reached.wait()
            source = await self._owner(stream.request)
            destination = next(name for name in self._cluster.names if name != source)
            content = await self._cluster.admin.migrate(stream.request, destination, method=method)
            record = move_record(content)
            last = record.num_output + TOKENS_AFTER
        await self._cluster.until(lambda status: not status.requests)
        return stream, record

    async def _owner(self, request: str) -> str:
        if (owner := await self._cluster.admin.owner(request)) is None:
            raise GodwitError("a request ended before its move")
        return owner


async def run_continuation(
    repeat: int, model: str, progress: Callable[[str], None], logs: Path | None = None
) -> ContinuationReport:
    """Move `repeat` greedy and `repeat` seeded requests by each method, each alone on two workers."""
    settings = Settings(
        head=HeadSettings(port=0),
        worker=WorkerSettings(slots=2, context_tokens=1024),
        models=(ModelSettings(name=model),),
    )
    rows = []
    async with LocalCluster(settings, 2, logs=logs) as cluster, aiohttp.ClientSession() as session:
        bench = ContinuationBench(cluster, session, model)
        for method in METHODS:
            shares: list[Share] = []
            for sampling in (GREEDY, SEEDED):
                num_identical = 0
                for number in range(repeat):
                    progress(f"{method}, {len(shares) * repeat + number + 1} of {2 * repeat}")
                    num_identical += await bench.is_identical(method, bench.body(sampling, number))
                shares.append(Share(num_identical, repeat))
            rows.append(MethodRow(method, *shares))
    return report_of(model, rows)


def report_of(model: str, rows: Sequence[MethodRow]) -> ContinuationReport:
    """The report on these rows, of which one is that of `kv`."""
    exact = next(row for row in rows if row.method == EXACT)
    ok = all(share.identical == share.of for share in (exact.greedy, exact.seeded))
    return ContinuationReport(model, tuple(rows), ok)
