"""Plays the scene under one policy after the other, each on a cluster of its own."""

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from godwit.client import decode, move_record
from godwit.errors import GodwitError
from godwit.figure3.report import POLICIES, Figure3Report, make_report
from godwit.figure3.runs import Run, make_run
from godwit.figure3.scene import SERVER_1, SERVER_2, Scene, Stage
from godwit.figure3.timeline import Client
from godwit.local import LocalCluster
from godwit.scheduling.eventlog import LogEntry
from godwit.streams import TimedStream, follow

REHEARSAL_POLICY = "availability"
# A head does not believe the first load that takes longer than it assumed (`costs.fit.OnlineConstant`).
NUM_REHEARSALS = 2


async def play(
    stage: Stage,
    progress: Callable[[str], None],
    *,
    repeat: int = 1,
    policies: Sequence[str] = POLICIES,
    logs: Path | None = None,
) -> Figure3Report:
    """Play the scene `repeat` times under each policy; GodwitError where an answer is not whole."""
    learnt = stage.folder / "rehearsal.sqlite"
    for turn in range(NUM_REHEARSALS):
        progress(f"rehearsal {turn + 1} of {NUM_REHEARSALS}: the head learns what loads and moves take here")
        await _rehearse(stage, learnt, logs)
    runs: list[Run] = []
    for turn in range(repeat):
        for policy in policies:
            progress(policy if repeat == 1 else f"{policy}, {turn + 1} of {repeat}")
            # Each policy begins with what the rehearsal taught, and with nothing that another one learnt.
            store = stage.folder / f"{policy}-{turn}.sqlite"
            await asyncio.to_thread(shutil.copyfile, learnt, store)
            try:
                runs.append(await _run(stage, policy, store, logs))
            except GodwitError as error:
                raise GodwitError(f"under {policy}: {error.message}") from error
    models = {"A": stage.scene.a.name, "B": stage.scene.b.name}
    return make_report(runs, models, stage.scene.emulated)


async def _run(stage: Stage, policy: str, store: Path, logs: Path | None) -> Run:
    cluster = LocalCluster(stage.settings(policy, store), 2, logs=logs, sites=stage.sites())
    async with cluster, _Clients(stage.scene, cluster) as clients:
        num_prompt = await clients.ask_a()
        clients.ask_b()
        await clients.finish()
        log = [decode(line, LogEntry) async for line in cluster.admin.events()]
        moves = (await cluster.admin.status()).moves
    return make_run(
        policy,
        clients.client("A"),
        clients.client("B"),
        log,
        moves,
        a_ids=clients.a.ids,
        a_prompt_tokens=num_prompt,
    )


async def _rehearse(stage: Stage, store: Path, logs: Path | None) -> None:
    """Load from DRAM, move both ways, load from SSD: what the scheduler has to weigh against each other.

    A moves to server 1, which loads it from DRAM, and back. So B, for which "availability" takes any free
    device, is loaded from server 1's SSD.
    """
    settings, sites = stage.settings(REHEARSAL_POLICY, store), stage.sites(is_rehearsal=True)
    cluster = LocalCluster(settings, 2, logs=logs, sites=sites)
    async with cluster, _Clients(stage.scene, cluster) as clients:
        await clients.ask_a()
        for destination in (SERVER_1, SERVER_2):
            record = move_record(await cluster.admin.migrate(clients.a.request, destination))
            if record.outcome != "done":
                raise GodwitError(f"the rehearsal's move to {destination} failed: {record.reason}")
        clients.ask_b()
        await clients.finish()


class _Clients:
    """The two clients; leaving the context ends what still runs."""

    def __init__(self, scene: Scene, cluster: LocalCluster) -> None:
        self.a, self.b = TimedStream(), TimedStream()
        self._scene = scene
        self._cluster = cluster
        self._asked_s: dict[str, float] = {}
        self._following: dict[str, asyncio.Task[TimedStream]] = {}
        self._reached = asyncio.Event()

    async def __aenter__(self) -> "_Clients":
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._following.values():
            task.cancel()
        await asyncio.gather(*self._following.values(), return_exceptions=True)
        await self._session.close()

    async def ask_a(self) -> int:
        """Ask for A's long answer and wait for its first `b_at` tokens; how many tokens its prompt has."""
        task = self._ask("A", self._scene.a_body(), self.a)
        task.add_done_callback(lambda _: self._reached.set())
        await self._reached.wait()
        if task.done():
            raise GodwitError(f"A ended before B could be asked for: {(await task).error or 'too early'}")
        status = await self._cluster.admin.status()
        seen = next((one for one in status.requests if one.id == self.a.request), None)
        if seen is None or seen.worker != SERVER_2:
            raise GodwitError(f"A should run on {SERVER_2}; run the demo again")
        return seen.num_prompt

    def ask_b(self) -> None:
        """Ask for B's answer now."""
        self._ask("B", self._scene.b_body(), self.b)

    async def finish(self) -> None:
        """Wait for both answers; GodwitError where one is not whole."""
        await asyncio.gather(*self._following.values())
        wanted = {"A": (self.a, self._scene.a_tokens), "B": (self.b, self._scene.b_tokens)}
        for label, (stream, num_tokens) in wanted.items():
            if stream.error is not None or len(stream.ids) != num_tokens:
                why = stream.error or f"it ended with {stream.finish_reason}"
                raise GodwitError(f"{label} got {len(stream.ids)} of {num_tokens} tokens: {why}")

    def client(self, label: str) -> Client:
        """What one of them saw."""
        scene = self._scene
        model, stream = (scene.a, self.a) if label == "A" else (scene.b, self.b)
        return Client(label, model.name, stream.request, self._asked_s[label], tuple(stream.times_s))

    def _ask(self, label: str, body: dict[str, Any], stream: TimedStream) -> "asyncio.Task[TimedStream]":
        def on_token(stream: TimedStream, _: str) -> bool:
            if stream is self.a and len(stream.ids) >= self._scene.b_at:
                self._reached.set()
            return True

        self._asked_s[label] = time.monotonic()
        task = asyncio.ensure_future(follow(self._session, self._cluster.url, body, stream, on_token))
        self._following[label] = task
        return task
