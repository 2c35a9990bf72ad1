"""`godwit bench soak`: random load, moves and kills for minutes; nothing may break, grow or stay behind."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import aiohttp
from msgspec import Struct

from godwit.bench.expected import fake_answer, text_of
from godwit.client import ClusterStatus, move_record
from godwit.config import HeadSettings, ModelSettings, Settings, WorkerSettings
from godwit.errors import GodwitError
from godwit.local import LocalCluster
from godwit.streams import TimedStream, follow
from godwit.types import Sampling

MODEL = "fake"
SLOTS = 8
MOVE_EVERY_S = 1.0
KILL_EVERY_S = 20.0
REPORT_EVERY_S = 10.0
# Memory is compared with what it was after this share of the time, when caches and pools have filled.
WARM_UP_SHARE = 0.2
MAX_GROWTH = 1.3


class Memory(Struct, frozen=True):
    """Resident bytes of one process when warm and at the end; a restarted worker's are its last life's."""

    name: str
    warm_bytes: int
    end_bytes: int

    @property
    def is_flat(self) -> bool:
        """Whether it has not grown by more than a third."""
        return self.end_bytes <= self.warm_bytes * MAX_GROWTH


class SoakReport(Struct, frozen=True):
    """What happened. `broken` says what was wrong with each broken stream; `ok` means that nothing was."""

    ok: bool
    minutes: float
    streams_done: int
    streams_broken: int
    broken: tuple[str, ...]
    tokens_delivered: int
    moves_done: int
    moves_failed: int
    failovers: int
    kills: int
    memory: tuple[Memory, ...]
    is_memory_flat: bool
    slots_leaked: int
    processes_leaked: int


async def run_soak(minutes: float, *, seed: int, workers: int, progress: Callable[[str], None]) -> SoakReport:
    """Run it; `progress` gets a line now and then. The fake engine makes every stream's content known."""
    pids: list[int] = []
    async with LocalCluster(_settings(), workers) as cluster, aiohttp.ClientSession() as session:
        soak = _Soak(cluster, session, Random(seed), minutes * 60, progress)
        await soak.run()
        slots_leaked = await soak.count_leaked_slots()
        memory = soak.memory_at_end()
        pids += soak.pids
    processes_leaked = sum(_is_running(pid) for pid in pids)
    is_flat = all(one.is_flat for one in memory)
    return SoakReport(
        ok=not soak.broken and is_flat and slots_leaked == 0 and processes_leaked == 0,
        minutes=minutes,
        streams_done=soak.num_done,
        streams_broken=len(soak.broken),
        broken=tuple(soak.broken[:20]),
        tokens_delivered=soak.num_tokens,
        moves_done=soak.num_moves["done"],
        moves_failed=soak.num_moves["failed"],
        failovers=soak.num_failovers,
        kills=soak.num_kills,
        memory=memory,
        is_memory_flat=is_flat,
        slots_leaked=slots_leaked,
        processes_leaked=processes_leaked,
    )


def _settings() -> Settings:
    options: dict[str, str | int | float | bool] = {"decode_s": 0.01, "prefill_tokens_per_s": 20_000.0}
    return Settings(
        head=HeadSettings(port=0),
        worker=WorkerSettings(slots=SLOTS),
        models=(ModelSettings(name=MODEL, engine="fake", options=options),),
    )


class _Soak:
    """One run: clients that ask one request after another, a mover, a killer, and what they saw."""

    def __init__(
        self,
        cluster: LocalCluster,
        session: aiohttp.ClientSession,
        random: Random,
        seconds: float,
        progress: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._session = session
        self._random = random
        self._seconds = seconds
        self._progress = progress
        self._is_over = asyncio.Event()
        self._warm_bytes: dict[str, int] = {}
        self._seen_failovers: set[tuple[str, int]] = set()
        self.broken: list[str] = []
        self.pids = [worker.pid for worker in cluster.workers.values()]
        self.num_done = 0
        self.num_tokens = 0
        self.num_kills = 0
        self.num_moves = {"done": 0, "failed": 0}

    @property
    def num_failovers(self) -> int:
        """Requests that were lost with a worker and went on elsewhere, once for each time."""
        return len(self._seen_failovers)

    async def run(self) -> None:
        """Load, move and kill until the time is up, then let the last streams end."""
        # So many that they fit on the workers that are left while one restarts.
        num_clients = max(1, SLOTS * (len(self._cluster.names) - 1) - 2)
        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(self._client(Random(self._random.random())))
            group.create_task(self._mover())
            group.create_task(self._killer())
            group.create_task(self._watcher())
            await asyncio.sleep(self._seconds)
            self._is_over.set()

    async def count_leaked_slots(self) -> int:
        """Slots that cannot be used at the end: all are asked for at the same time."""
        await self._cluster.until(lambda status: not status.requests)
        wanted = SLOTS * len(self._cluster.names)
        body = {"model": MODEL, "prompt": "x", "max_tokens": 3000, "temperature": 0}
        tasks = [
            asyncio.create_task(follow(self._session, self._cluster.url, body, TimedStream()))
            for _ in range(wanted)
        ]
        most = 0

        def is_full(status: ClusterStatus) -> bool:
            nonlocal most
            most = max(most, sum(one.num_output > 0 for one in status.requests))
            return most >= wanted

        try:
            await self._cluster.until(is_full, timeout_s=15.0)
        except TimeoutError:
            self._progress(f"only {most} of {wanted} slots could be used")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return wanted - most

    def memory_at_end(self) -> tuple[Memory, ...]:
        """The head's memory (with this benchmark's clients, which share its process), and the workers'."""
        now = self._memory()
        return tuple(Memory(name, self._warm_bytes.get(name, used), used) for name, used in now.items())

    async def _client(self, random: Random) -> None:
        while not self._is_over.is_set():
            prompt = "".join(random.choices("godwit ", k=random.randint(1, 1500)))
            max_tokens = random.randint(1, 500)
            body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
            stream = TimedStream()
            try:
                await follow(self._session, self._cluster.url, body, stream)
            except (GodwitError, aiohttp.ClientError) as error:
                stream.error = f"{type(error).__name__}: {error}"
            self._judge(stream, prompt, max_tokens)

    def _judge(self, stream: TimedStream, prompt: str, max_tokens: int) -> None:
        output, reason = fake_answer(prompt, Sampling(0, max_tokens, temperature=0))
        self.num_done += 1
        self.num_tokens += len(stream.ids)
        faults = [
            name
            for name, is_right in (
                (f"error: {stream.error}", stream.error is None),
                ("other tokens", stream.ids == [token.id for token in output]),
                ("another text", stream.text == text_of(output)),
                (f"finish_reason {stream.finish_reason}", stream.finish_reason == reason),
                (f"usage of {stream.completion_tokens} tokens", stream.completion_tokens == len(output)),
            )
            if not is_right
        ]
        if faults:
            self.broken.append(f"{stream.request or 'a request that was refused'}: {', '.join(faults)}")
            self._progress(f"BROKEN {self.broken[-1]}")

    async def _mover(self) -> None:
        moves: set[asyncio.Task[None]] = set()
        while not await self._over_within(MOVE_EVERY_S):
            moves.add(task := asyncio.create_task(self._move()))
            task.add_done_callback(moves.discard)
        await asyncio.gather(*moves)

    async def _move(self) -> None:
        status = await self._cluster.admin.status()
        running = [one for one in status.requests if one.worker is not None and one.state == "running"]
        if not running:
            return
        chosen = self._random.choice(running)
        others = [worker.name for worker in status.workers if worker.name != chosen.worker]
        if not others:
            return
        is_live = self._random.random() < 0.8
        try:
            answer = await self._cluster.admin.migrate(chosen.id, self._random.choice(others), live=is_live)
        except GodwitError:
            # The request has ended, the other worker is full, or has died: the move has not begun.
            return
        self.num_moves["done" if move_record(answer).outcome == "done" else "failed"] += 1

    async def _killer(self) -> None:
        every_s = min(KILL_EVERY_S, self._seconds / 3)
        while not await self._over_within(every_s):
            name = self._random.choice(self._cluster.names)
            await self._cluster.kill(name)
            self._warm_bytes.pop(name, None)
            self.num_kills += 1
            await self._cluster.start(name)
            self.pids.append(self._cluster.workers[name].pid)
            await self._cluster.joined([name])

    async def _watcher(self) -> None:
        started_s = time.monotonic()
        every_s = min(REPORT_EVERY_S, self._seconds * WARM_UP_SHARE)
        is_over = False
        while not is_over:
            is_over = await self._over_within(every_s)
            for name, used in self._memory().items():
                self._warm_bytes.setdefault(name, used)
            moves = (await self._cluster.admin.status()).moves
            self._seen_failovers |= {
                (record.request, record.num_output) for record in moves if record.method == "failover"
            }
            self._progress(
                f"{time.monotonic() - started_s:.0f} s: {self.num_done} streams, {len(self.broken)} broken, "
                f"{self.num_moves['done']} moves, {self.num_failovers} failovers, {self.num_kills} kills"
            )

    async def _over_within(self, seconds: float) -> bool:
        """Wait so long or until the time is up; whether it is."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_over.wait()
        except TimeoutError:
            return False
        return True

    def _memory(self) -> dict[str, int]:
        processes = {name: worker.pid for name, worker in self._cluster.workers.items() if worker.is_running}
        return {"head": _resident_bytes("self"), **{n: _resident_bytes(str(p)) for n, p in processes.items()}}


def _resident_bytes(pid: str) -> int:
    """Resident memory of a process, 0 where it has ended (or where there is no /proc)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmRSS:")), "VmRSS: 0 kB")
    return int(line.split()[1]) * 1024


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
