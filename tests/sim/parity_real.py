"""Plays a scene on a loopback cluster: real processes with the fake engine."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from godwit.client import decode
from godwit.config import HeadSettings, ModelSettings, MoveSettings, Settings, WorkerSettings
from godwit.local import LocalCluster, Site
from godwit.scheduling.eventlog import LogEntry
from godwit.streams import TimedStream, follow
from tests.sim import traced
from tests.sim.parity import (
    CHUNK_TOKENS,
    CONTEXT_TOKENS,
    INSTANCE_BYTES,
    PATIENCE_S,
    Ask,
    Client,
    Drain,
    Gone,
    Has,
    Kill,
    Move,
    Moved,
    Over,
    Played,
    Scene,
    Server,
    Step,
    played,
)
from tests.sim.traced import Change, tracing

DEADLINE_S = 60.0


class RealPlay:
    """One scene on a cluster of its own; logs and traces go into a folder, checkpoints into `files`."""

    def __init__(self, scene: Scene, folder: Path, files: Path) -> None:
        self._scene = scene
        self._folder = folder
        self._files = files
        self._changes: list[Change] = []
        self._streams: dict[str, TimedStream] = {}
        self._asked_s: dict[str, float] = {}
        self._answers: dict[str, asyncio.Task[TimedStream]] = {}
        self._moves: list[asyncio.Task[bytes]] = []
        self._grew = asyncio.Event()

    async def play(self) -> Played:
        """Let all steps happen; TimeoutError where they take for ever."""
        sites = {server.name: self._site(server) for server in self._scene.servers}
        with tracing(self._changes.append):
            async with (
                asyncio.timeout(DEADLINE_S),
                LocalCluster(self._settings(), len(sites), logs=self._folder, sites=sites) as cluster,
                aiohttp.ClientSession() as session,
            ):
                assert cluster.names == list(sites)
                try:
                    for step in self._scene.steps:
                        await self._take(step, cluster, session)
                    log = [decode(line, LogEntry) async for line in cluster.admin.events()]
                    records = (await cluster.admin.status()).moves
                finally:
                    for task in (*self._answers.values(), *self._moves):
                        task.cancel()
                    await asyncio.gather(*self._answers.values(), *self._moves, return_exceptions=True)
        clients = [
            Client(label, one.request, self._asked_s[label], tuple(one.times_s))
            for label, one in self._streams.items()
        ]
        written = [_read(self._trace(server)) for server in self._scene.servers]
        return played(log, records, clients, [self._changes, *written])

    async def _take(self, step: Step, cluster: LocalCluster, session: aiohttp.ClientSession) -> None:
        match step:
            case Ask():
                self._ask(step, cluster, session)
            case Has(label, num_tokens):
                await self._until(lambda: len(self._streams[label].ids) >= num_tokens)
            case Over(label):
                stream = await self._answers[label]
                assert stream.error is None, f"{label}: {stream.error}"
            case Move(label, to):
                request = self._streams[label].request
                self._moves.append(asyncio.create_task(cluster.admin.migrate(request, to)))
            case Moved(num_moves):
                await cluster.until(lambda status: len(status.moves) >= num_moves)
            case Drain(worker):
                await cluster.admin.drain(worker, None)
            case Kill(worker):
                await cluster.kill(worker)
            case Gone(worker):
                await cluster.until(lambda status: all(one.name != worker for one in status.workers))

    def _ask(self, ask: Ask, cluster: LocalCluster, session: aiohttp.ClientSession) -> None:
        def on_token(*_: object) -> bool:
            self._grew.set()
            return True

        body: dict[str, Any] = {
            "model": ask.model,
            "prompt": "x" * ask.num_prompt,  # a byte is a token
            "max_tokens": ask.num_output,
            "ignore_eos": True,
            "temperature": 0,
        }
        stream = self._streams[ask.label] = TimedStream()
        self._asked_s[ask.label] = time.monotonic()
        self._answers[ask.label] = asyncio.create_task(follow(session, cluster.url, body, stream, on_token))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._grew.clear()
            await self._grew.wait()

    # --- what there is --------------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        scene = self._scene
        worker = WorkerSettings(
            slots=scene.slots,
            context_tokens=CONTEXT_TOKENS,
            prefill_chunk=CHUNK_TOKENS,
            device_bytes=scene.device_bytes,
            emulated_ssd_bytes_per_s=scene.ssd_bytes_per_s,
            emulated_dram_bytes_per_s=scene.dram_bytes_per_s,
        )
        head = HeadSettings(port=0, policy=scene.policy, patience_s=PATIENCE_S)
        return Settings(head=head, worker=worker, moves=MoveSettings(method="tokens"), models=())

    def _site(self, server: Server) -> Site:
        """Each server has files of its own: two that share one would share what is in memory."""
        return Site(
            worker={"dram_bytes": server.dram_bytes},
            prefix=(sys.executable, traced.__file__, str(self._trace(server))),
            models=tuple(self._model(server, model.name, model.num_bytes) for model in self._scene.models),
        )

    def _model(self, server: Server, name: str, num_bytes: int) -> ModelSettings:
        path = self._files / f"{server.name}-{name}.model"
        path.write_bytes(b"x" * num_bytes)
        return ModelSettings(
            name=name,
            path=str(path),
            engine="fake",
            preload="device" if name == server.device else "dram" if name in server.dram else "none",
            options={
                "decode_s": self._scene.decode_s,
                "prefill_tokens_per_s": self._scene.prefill_tps,
                "device_bytes": INSTANCE_BYTES,
            },
        )

    def _trace(self, server: Server) -> Path:
        return self._folder / f"{server.name}.trace"


def _read(file: Path) -> list[Change]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Change) for line in lines]
