"""`godwit bench contention`: the same bursts of requests under each policy, on devices that are too few."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import msgspec

from godwit.bench.contention_report import (
    Answer,
    Arrivals,
    ContentionReport,
    Errors,
    Event,
    PolicyRow,
    best_known,
    make_row,
)
from godwit.bench.contention_scene import Ask, Load, Stage, make_asks
from godwit.client import AdminClient
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.streams import TimedStream, follow

PROGRESS_S = 10.0
# After the last arrival; whoever is not answered by then counts as an error.
DRAIN_S = 600.0
DECISIONS = "decisions.jsonl"
KINDS = {"loading": "load", "resume": "resume"}


async def run_contention(
    stage: Stage,
    load: Load,
    policies: Sequence[str],
    questions: tuple[str, ...],
    progress: Callable[[str], None],
    logs: Path | None = None,
) -> ContentionReport:
    """Run every policy on a cluster of its own; `progress` gets a line now and then.

    In `logs`, a folder for each policy has the workers' output and the head's decisions.
    """
    asks = make_asks(load, stage.scene.models, questions)
    rows = {}
    for policy in policies:
        rows[policy] = await _run(stage, policy, asks, progress, logs)
    num_tokens = sum(ask.max_tokens for ask in asks)
    arrivals = Arrivals(load.rate_per_s, load.cv, load.seed, load.minutes, len(asks), num_tokens)
    return ContentionReport(rows, best_known(rows), stage.scene.emulated, arrivals)


async def _run(
    stage: Stage, policy: str, asks: Sequence[Ask], progress: Callable[[str], None], logs: Path | None
) -> PolicyRow:
    progress(f"{policy}: starting the workers")
    cluster = LocalCluster(
        stage.settings(policy),
        stage.scene.num_workers,
        logs=None if logs is None else logs / policy,
        sites=stage.sites(),
    )
    async with cluster:
        clients = _Clients(cluster.url, asks, lambda text: progress(f"{policy}: {text}"))
        await clients.run()
        log = [line async for line in cluster.admin.events()]
        estimators = await _estimators(cluster.admin)
    answers = [
        _answer(ask, stream, clients.started_s) for ask, stream in zip(asks, clients.streams, strict=True)
    ]
    row = make_row(
        answers, [msgspec.json.decode(line, type=Event) for line in log], estimators, clients.drain_s
    )
    if logs is not None:
        await asyncio.to_thread((logs / policy / DECISIONS).write_bytes, b"".join(log))
    progress(
        f"{policy}: startup P50 {row.startup_p50_s:.2f} s, P99 {row.startup_p99_s:.2f} s, {row.moves} moves, "
        f"{row.kills} kills, {row.errors} errors"
    )
    return row


class _Clients:
    """One client a request, each of which asks when its time has come."""

    def __init__(self, url: str, asks: Sequence[Ask], progress: Callable[[str], None]) -> None:
        self.streams = [TimedStream() for _ in asks]
        self.started_s = 0.0
        self.drain_s = 0.0
        self._url = url
        self._asks = asks
        self._progress = progress
        self._num_asked = 0
        self._num_done = 0

    async def run(self) -> None:
        """Ask all and wait for the answers, but no longer than `DRAIN_S` after the last arrival."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            self.started_s = time.monotonic()
            tasks = [
                asyncio.create_task(self._ask(session, ask, stream))
                for ask, stream in zip(self._asks, self.streams, strict=True)
            ]
            telling = asyncio.create_task(self._tell())
            try:
                last_s = max((ask.at_s for ask in self._asks), default=0.0)
                await asyncio.wait(tasks, timeout=last_s + DRAIN_S)
                self.drain_s = time.monotonic() - self.started_s - last_s
            finally:
                for task in (*tasks, telling):
                    task.cancel()
                await asyncio.gather(*tasks, telling, return_exceptions=True)

    async def _ask(self, session: aiohttp.ClientSession, ask: Ask, stream: TimedStream) -> None:
        await asyncio.sleep(self.started_s + ask.at_s - time.monotonic())
        self._num_asked += 1
        try:
            await follow(session, self._url, ask.body, stream)
        except (GodwitError, aiohttp.ClientError, TimeoutError) as error:
            stream.error = f"{type(error).__name__}: {error}"
        self._num_done += 1

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._progress(
                f"{time.monotonic() - self.started_s:.0f} s, {self._num_done} of {self._num_asked} answered, "
                f"{len(self._asks) - self._num_asked} to come"
            )


def _answer(ask: Ask, stream: TimedStream, started_s: float) -> Answer:
    problem = stream.error
    if problem is None and len(stream.ids) != ask.max_tokens:
        problem = f"{len(stream.ids)} of {ask.max_tokens} tokens"
    asked_s = started_s + ask.at_s
    return Answer(stream.request, tuple(at_s - asked_s for at_s in stream.times_s), problem)


class _Report(msgspec.Struct, frozen=True):
    errors: dict[str, Errors]


class _Estimates(msgspec.Struct, frozen=True):
    estimates: _Report


async def _estimators(admin: AdminClient) -> dict[str, Errors]:
    errors = msgspec.json.decode(await admin.estimates_json(), type=_Estimates).estimates.errors
    return {name: errors[kind] for name, kind in KINDS.items() if kind in errors}
