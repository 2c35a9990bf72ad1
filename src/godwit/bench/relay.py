"""What the head costs a streamed token: fake engines feed it over real links, clients read SSE from it.

The head runs in a process of its own on the first core, engines and clients in this one on the second, so
that one clock times a token's way and the head's CPU time is the head's alone.
"""

import asyncio
import contextlib
import gc
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import aiohttp
import msgspec
import numpy as np
from msgspec import Struct

from godwit.bench.relay_clients import Client, ClientError
from godwit.bench.relay_engines import FakeEngine
from godwit.config import HeadSettings, Settings
from godwit.errors import ConfigError

MODES = ("lockstep", "paced", "flooded")
NUM_ENGINES = 4
WARMUP_S = 0.5
START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 30.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class RelayRow(Struct, frozen=True):
    """Medians over `n` runs of one mode. Latency is from the engine's write to the client's read.

    `spread` is range over median of `cpu_us_per_token`; `load_cpu_us_per_token` is what engines
    and clients took; `foreign_cores` is how many cores everything else on the machine kept busy meanwhile.
    """

    mode: str
    clients: int
    cpu_us_per_token: float
    added_p50_us: float
    added_p99_us: float
    n: int
    spread: float
    tokens_per_s: float
    tokens_per_write: float
    load_cpu_us_per_token: float
    foreign_cores: float


class RelayReport(Struct, frozen=True):
    """One row for each mode and number of clients; every token of every run arrived, once and in order."""

    rows: tuple[RelayRow, ...]


async def run_relay(
    modes: Sequence[str],
    clients: Sequence[int],
    seconds: float,
    repeat: int,
    progress: Callable[[str], None],
) -> RelayReport:
    """Measure each mode with each number of clients, `repeat` times for `seconds` each.

    ConfigError for an unknown mode or without Linux, ClientError where a token was lost, doubled or out of
    order.
    """
    if sys.platform != "linux":
        raise ConfigError("this benchmark reads CPU times from Linux's /proc and per-process clocks")
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(f"there is no relay mode {mode!r}; choose from: {', '.join(MODES)}")
    cases = [(mode, count) for mode in modes for count in clients]
    runs: dict[tuple[str, int], list[RelayRow]] = {case: [] for case in cases}
    async with _head_process() as (process, url):
        # The cases take turns: what else the machine does for a while then touches all of them.
        for number in range(repeat):
            for mode, count in cases:
                progress(f"{mode}, {count} clients: run {number + 1} of {repeat}")
                runs[mode, count].append(await _run_once(process.pid, url, mode, count, seconds))
    return RelayReport(tuple(_summary(rows) for rows in runs.values()))


def _summary(rows: Sequence[RelayRow]) -> RelayRow:
    first = rows[0]

    def middle(field: str) -> float:
        return round(float(median(getattr(row, field) for row in rows)), 3)

    costs = [row.cpu_us_per_token for row in rows]
    return RelayRow(
        first.mode,
        first.clients,
        middle("cpu_us_per_token"),
        middle("added_p50_us"),
        middle("added_p99_us"),
        len(rows),
        round((max(costs) - min(costs)) / median(costs), 3),
        middle("tokens_per_s"),
        middle("tokens_per_write"),
        middle("load_cpu_us_per_token"),
        middle("foreign_cores"),
    )


@contextlib.asynccontextmanager
async def _head_process() -> AsyncIterator[tuple[Process, str]]:
    """A head on the first core and this process on the second; both are as before afterwards."""
    cores = sorted(os.sched_getaffinity(0))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "godwit.bench.relay_head", stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    reading: asyncio.Future[None] | None = None
    try:
        if len(cores) > 1:
            os.sched_setaffinity(process.pid, {cores[0]})
            os.sched_setaffinity(0, {cores[1]})
        process.stdin.write(msgspec.json.encode(Settings(head=HeadSettings(port=0))) + b"\n")
        url = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        reading = asyncio.ensure_future(_discard(process.stdout))
        if not url.startswith(b"http"):
            raise ClientError("the head did not start")
        yield process, url.decode().strip()
    finally:
        os.sched_setaffinity(0, set(cores))
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        if reading is not None:
            await reading


async def _discard(stream: asyncio.StreamReader) -> None:
    """Read the head's log, which nobody wants, so that the pipe never fills."""
    while await stream.read(1 << 16):
        pass


async def _run_once(pid: int, url: str, mode: str, num_clients: int, seconds: float) -> RelayRow:
    clients: dict[int, Client] = {}
    engines = [FakeEngine(number, NUM_ENGINES, mode, clients) for number in range(NUM_ENGINES)]
    engine_of: dict[int, FakeEngine] = {}
    async with aiohttp.ClientSession() as session:
        links = [asyncio.ensure_future(engine.run(session, url)) for engine in engines]
        try:
            await _until(lambda: all(engine.has_joined for engine in engines))
            await _connect(url, num_clients, clients, lambda client, n: engine_of[client.number].on_read(n))
            await _until(
                lambda: sum(len(engine.outputs) for engine in engines) == num_clients, clients.values()
            )
            engine_of |= {o.client.number: engine for engine in engines for o in engine.outputs.values()}
            return await _measure(pid, mode, engines, list(clients.values()), seconds)
        finally:
            for client in clients.values():
                client.close()
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)


async def _connect(
    url: str, num_clients: int, clients: dict[int, Client], on_tokens: Callable[[Client, int], None]
) -> None:
    host, _, port = urlsplit(url).netloc.rpartition(":")
    for number in range(num_clients):
        clients[number] = Client(number, on_tokens)
        await _connect_one(clients[number], host, int(port))


async def _connect_one(client: Client, host: str, port: int) -> None:
    await asyncio.get_running_loop().create_connection(lambda: client, host, port)


async def _until(is_so: Callable[[], bool], clients: Iterable[Client] = ()) -> None:
    """Wait until `is_so`; ClientError where a client ends before."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while not is_so():
            for client in clients:
                if client.ended.done():
                    client.check(0)
            await asyncio.sleep(0.01)


async def _measure(
    pid: int, mode: str, engines: Sequence[FakeEngine], clients: Sequence[Client], seconds: float
) -> RelayRow:
    for engine in engines:
        engine.go()
    await _until(lambda: all(client.num_received for client in clients), clients)
    await asyncio.sleep(WARMUP_S)
    # A collection over everything that clients keep would look like latency.
    gc.disable()
    try:
        before = _Sample(pid, clients)
        for client in clients:
            client.is_measured = True
        await asyncio.sleep(seconds)
        for client in clients:
            client.is_measured = False
        after = _Sample(pid, clients)
    finally:
        gc.enable()
    num_events = await _finish(engines, clients)
    delays_s = np.concatenate([np.asarray(client.delays_s) for client in clients])
    p50_s, p99_s = np.percentile(delays_s, (50, 99))
    num_tokens = after.num_tokens - before.num_tokens
    head_s, load_s = after.head_s - before.head_s, after.load_s - before.load_s
    wall_s = after.wall_s - before.wall_s
    return RelayRow(
        mode,
        len(clients),
        head_s / num_tokens * 1e6,
        float(p50_s) * 1e6,
        float(p99_s) * 1e6,
        1,
        0.0,
        num_tokens / wall_s,
        sum(client.num_received for client in clients) / num_events,
        load_s / num_tokens * 1e6,
        max(0.0, (after.machine_s - before.machine_s - head_s - load_s) / wall_s),
    )


async def _finish(engines: Sequence[FakeEngine], clients: Sequence[Client]) -> int:
    """End all requests and check every client's tokens; returns how many events they came in."""
    num_sent = {o.client.number: o for engine in engines for o in engine.outputs.values()}
    for engine in engines:
        engine.finish()
    async with asyncio.timeout(END_TIMEOUT_S):
        await asyncio.gather(*(client.ended for client in clients))
    return sum(client.check(num_sent[client.number].num_sent) for client in clients)


class _Sample:
    """CPU seconds of the head, of this process and of the whole machine, and the tokens so far."""

    def __init__(self, pid: int, clients: Sequence[Client]) -> None:
        self.num_tokens = sum(client.num_received for client in clients)
        self.head_s = _cpu_s(pid)
        self.load_s = time.process_time()
        self.wall_s = time.monotonic()
        # user, nice, system, idle, iowait, irq, softirq, steal
        ticks = [int(value) for value in Path("/proc/stat").read_text().split()[1:9]]
        self.machine_s = (sum(ticks) - ticks[3] - ticks[4]) * _TICK_S


def _cpu_s(pid: int) -> float:
    """User and system time of a process with all its threads, from Linux's clock for it: no 10 ms ticks."""
    return time.clock_gettime((~pid << 3) | 2)
