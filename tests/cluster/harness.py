"""A cluster of real processes for tests: started, disturbed and watched through its public interfaces."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from godwit.bench.expected import fake_answer, text_of
from godwit.client import WorkerStatus
from godwit.config import HeadSettings, ModelSettings, MoveSettings, Settings, WorkerSettings
from godwit.local import LocalCluster
from godwit.processes import start_worker
from godwit.protocol.entry import MoveRecord
from godwit.types import Sampling
from godwit.worker.faults import VARIABLE
from tests.cluster.streams import Stream
from tests.patience import DEADLINE_S

POLL_S = 0.01
TOKENS = MoveSettings(method="tokens")


class MoveStatus(Struct, frozen=True):
    """A move in hand, as the status shows it."""

    move: str
    source: str
    destination: str
    state: str


class RequestStatus(Struct, frozen=True):
    """A request, as the status shows it."""

    id: str
    worker: str | None
    state: str
    num_prompt: int
    num_output: int
    epoch: int
    moves: int
    move: MoveStatus | None


class Status(Struct, frozen=True):
    """What the head knows now."""

    workers: tuple[WorkerStatus, ...]
    requests: tuple[RequestStatus, ...]
    moves: tuple[MoveRecord, ...]


def fake(name: str = "fake", **options: str | int | float | bool) -> ModelSettings:
    """A model of the deterministic engine."""
    return ModelSettings(name=name, engine="fake", options=options)


def settings(
    *models: ModelSettings,
    worker: WorkerSettings | None = None,
    moves: MoveSettings | None = None,
    dead_after_s: float = 3.0,
    placement_timeout_s: float = 30.0,
) -> Settings:
    """Settings for a cluster on a free port."""
    head = HeadSettings(
        port=0, heartbeat_s=0.3, dead_after_s=dead_after_s, placement_timeout_s=placement_timeout_s
    )
    return Settings(head=head, models=models, worker=worker or WorkerSettings(), moves=moves or TOKENS)


class Cluster(LocalCluster):
    """A head in this process and workers in their own, each with settings and a fault of its own if need be.

    `faults` maps a worker to the message on whose receipt its first life dies, or to another fault of
    `godwit.worker.faults`, such as "corrupt=KvPart".
    """

    def __init__(
        self,
        settings: Settings,
        num_workers: int = 2,
        *,
        variants: Mapping[str, Settings] | None = None,
        faults: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(settings, num_workers)
        self._variants = dict(variants or {})
        self._faults = dict(faults or {})
        self._streams: list[Stream] = []

    async def __aenter__(self) -> "Cluster":
        await super().__aenter__()
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            await stream.abandon()
        await self.session.close()
        await super().__aexit__(kind, error, trace)

    async def start(self, name: str) -> None:
        """Start a worker's process; a fault holds for one life only."""
        self._started_ns[name] = time.time_ns()
        if (fault := self._faults.pop(name, None)) is not None:
            os.environ[VARIABLE] = f"{name}:{fault if '=' in fault else f'exit_on={fault}'}"
        try:
            chosen = self._variants.get(name, self.settings)
            self.workers[name] = await start_worker(name, self.url, chosen, self.logs / f"{name}.log")
        finally:
            os.environ.pop(VARIABLE, None)

    async def restart(self, name: str, fault: str | None = None) -> None:
        """Start a new life of a worker that has ended, and wait until it has joined."""
        await self.workers[name].wait()
        if fault is not None:
            self._faults[name] = fault
        await self.start(name)
        async with asyncio.timeout(DEADLINE_S):
            await self.joined([name])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a worker's process."""
        os.kill(self.workers[name].pid, number)

    def log_of(self, name: str) -> str:
        """All that a worker has written."""
        return self.workers[name].log.read_text(encoding="utf-8")

    async def wait_for_log(self, name: str, text: str, occurrences: int = 1) -> None:
        """Wait until a worker has written this, in all its lives, so many times; needs no head."""
        end = time.monotonic() + DEADLINE_S
        while (log := self.log_of(name)).count(text) < occurrences:
            assert time.monotonic() < end, log
            await asyncio.sleep(POLL_S)

    # --- what clients do ------------------------------------------------------------------------------------

    def open(self, body: Mapping[str, Any]) -> Stream:
        """Ask for a completion, or chat where there are messages; returns before the answer begins."""
        stream = Stream(self.session, self.url, body)
        self._streams.append(stream)
        return stream

    async def started(self, body: Mapping[str, Any], num_tokens: int = 1) -> Stream:
        """The same, once so many tokens have come."""
        stream = self.open(body)
        await stream.has(num_tokens)
        return stream

    async def answer(self, body: Mapping[str, Any]) -> Any:
        """The whole answer, undisturbed."""
        return await self.open(body).end()

    # --- what operators do ----------------------------------------------------------------------------------

    async def state(self) -> Status:
        """The status now."""
        return msgspec.json.decode(await self.admin.status_json(), type=Status)

    async def find(self, request: str) -> RequestStatus:
        """The status of a request that is not over."""
        return next(one for one in (await self.state()).requests if one.id == request)

    async def wait_for(self, is_so: Callable[[Status], bool]) -> Status:
        """The first status for which `is_so` holds; TimeoutError with the last one if none is in time."""
        end = time.monotonic() + DEADLINE_S
        while not is_so(status := await self.state()):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {DEADLINE_S:.0f} s; now: {status}")
            await asyncio.sleep(POLL_S)
        return status

    async def move(
        self, request: str, to: str, *, live: bool = True, method: str | None = None, force: bool = False
    ) -> MoveRecord:
        """Move a request and wait for the record of it."""
        answer = await self.admin.migrate(
            request, to, live=live, method=method, force=force, timeout_s=DEADLINE_S
        )
        return msgspec.json.decode(answer, type=MoveRecord)

    def begin_move(
        self, request: str, to: str, *, live: bool = True, method: str | None = None
    ) -> "asyncio.Task[MoveRecord]":
        """Ask for a move without waiting for it."""
        return asyncio.create_task(self.move(request, to, live=live, method=method))

    async def outcomes(self, request: str) -> list[tuple[str, str]]:
        """Method and outcome of the request's moves and failovers that are over."""
        return [(record.method, record.outcome) for record in await self.records(request)]

    async def restart_scheduler(self) -> None:
        """Have the head's scheduler start anew."""
        async with self.session.post(f"{self.url}/admin/scheduler/restart") as response:
            assert response.status == 200

    async def move_state(self, request: str, state: str) -> None:
        """Wait until a request's move is in this state of the head's machine."""
        await self.wait_for(
            lambda status: any(
                one.move is not None and one.move.state == state
                for one in status.requests
                if one.id == request
            )
        )

    async def records(self, request: str) -> list[MoveRecord]:
        """The request's moves and failovers that are over."""
        return [record for record in (await self.state()).moves if record.request == request]

    async def is_idle(self) -> None:
        """Wait until no request is left."""
        await self.wait_for(lambda status: not status.requests)

    async def has_all_slots(self, model: str = "fake") -> None:
        """Show that every slot of every worker is free by using all of them at the same time."""
        await self.is_idle()
        status = await self.state()
        body = {"model": model, "prompt": "x", "max_tokens": 3000, "temperature": 0}
        streams = [self.open(body) for _ in range(sum(worker.slots for worker in status.workers))]
        try:
            for stream in streams:
                await stream.has(1)
            assert [w.used for w in (await self.state()).workers] == [w.slots for w in status.workers]
        finally:
            for stream in streams:
                await stream.leave()
        await self.is_idle()


async def check_whole(stream: Stream, asked: Mapping[str, Any]) -> None:
    """The stream ends, and is what the deterministic engine must answer to a greedy text completion."""
    answer = await stream.end()
    output, reason = fake_answer(asked["prompt"], Sampling(0, asked["max_tokens"], temperature=0))
    assert answer.error is None
    assert answer.only.ids == [token.id for token in output]
    assert answer.only.text == text_of(output)
    assert answer.only.finish_reason == reason
    num_prompt, num_output = len(asked["prompt"].encode()), len(output)
    assert answer.usage == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
    }
    assert answer.is_done
