"""`godwit bench contention`: the same bursts of requests under each policy, on devices that are too few."""

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace

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
from godwit.bench.contention_scene import PLACEMENT_TIMEOUT_S, Ask, Load, Stage, make_asks
from godwit.client import AdminClient
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.streams import SILENCE_S, TimedStream, follow

PROGRESS_S = 10.0
# After the last arrival; whoever is not answered by then counts as an error.
DRAIN_S = 600.0
# A client waits for longer than the head does for a place.
PATIENCE_S = PLACEMENT_TIMEOUT_S + SILENCE_S
DECISIONS = "decisions.jsonl"
REHEARSAL = "rehearsal"
REHEARSAL_POLICY = "live_migration"
REHEARSAL_MINUTES = 1.0
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

    A rehearsal with other requests, as many but not in bursts, teaches what loads and moves take here. In
    `logs`, a folder for each policy has the workers' output and the head's decisions.
    """
    models = stage.scene.models
    rehearsal = replace(
        load, minutes=min(REHEARSAL_MINUTES, load.minutes), cv=min(1.0, load.cv), seed=load.seed + 1
    )
    learnt = stage.folder / f"{REHEARSAL}.sqlite"
    run = _Run(stage, REHEARSAL_POLICY, learnt, progress, None if logs is None else logs / REHEARSAL)
    await run.play(make_asks(rehearsal, models, questions))
    asks = make_asks(load, models, questions)
    rows = {}
    for policy in policies:
        # Each policy begins with what the rehearsal taught, and with nothing that another one learnt.
        store = stage.folder / f"{policy}.sqlite"
        await asyncio.to_thread(shutil.copyfile, learnt, store)
        run = _Run(stage, policy, store, progress, None if logs is None else logs / policy)
        rows[policy] = await run.play(asks)
    num_tokens = sum(ask.max_tokens for ask in asks)
    arrivals = Arrivals(load.rate_per_s, load.cv, load.seed, load.minutes, len(asks), num_tokens)
    return ContentionReport(rows, best_known(rows), stage.scene.emulated, arrivals)


class _Run:
    """One policy on a cluster of its own, which keeps in `store` what it learns."""

    def __init__(
        self, stage: Stage, policy: str, store: Path, progress: Callable[[str], None], logs: Path | None
    ) -> None:
        self._stage = stage
        self._settings = stage.settings(policy, store)
        self._name = store.stem
        self._progress = progress
        self._logs = logs

    async def play(self, asks: Sequence[Ask]) -> PolicyRow:
        """Ask all, wait for the answers, and see what the head has to say."""
        self._say("starting the workers")
        stage = self._stage
        cluster = LocalCluster(self._settings, stage.scene.num_workers, logs=self._logs, sites=stage.sites())
        async with cluster:
            clients = _Clients(cluster.url, asks, self._say)
            await clients.run()
            log = [line async for line in cluster.admin.events()]
            estimators = await _estimators(cluster.admin)
        if self._logs is not None:
            await asyncio.to_thread((self._logs / DECISIONS).write_bytes, b"".join(log))
        events = [msgspec.json.decode(line, type=Event) for line in log]
        row = make_row(clients.answers(), events, estimators, clients.drain_s)
        self._say(
            f"startup P50 {row.startup_p50_s:.2f} s, P99 {row.startup_p99_s:.2f} s, {row.moves} moves, "
            f"{row.failed_moves} failed, {row.kills} kills, {row.errors} errors"
        )
        return row

    def _say(self, text: str) -> None:
        self._progress(f"{self._name}: {text}")


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

    def answers(self) -> list[Answer]:
        """What each of them got."""
        return [
            _answer(ask, stream, self.started_s) for ask, stream in zip(self._asks, self.streams, strict=True)
        ]

    async def _ask(self, session: aiohttp.ClientSession, ask: Ask, stream: TimedStream) -> None:
        await asyncio.sleep(self.started_s + ask.at_s - time.monotonic())
        self._num_asked += 1
        try:
            await follow(session, self._url, ask.body, stream, silence_s=PATIENCE_S)
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
