"""Godwit on a Ray cluster on this machine, as `godwit ray up` starts it; everything stays on loopback."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster as RayCluster
from ray.core.generated import autoscaler_pb2

from godwit.client import AdminClient
from godwit.config import Settings
from godwit.errors import LinkError
from tests.cluster.harness import Cluster
from tests.cluster.headprocess import free_port
from tests.cluster.streams import Stream
from tests.patience import DEADLINE_S
from tests.ray.marks import Marked, is_running, parent
from tests.ray.options import NODE

MODEL = """
[[models]]
name = "fake"
engine = "fake"
options = { decode_s = 0.02 }
"""
CONFIG = """
[head]
port = {port}
heartbeat_s = 0.3
dead_after_s = 1.5
[moves]
method = "tokens"
[worker]
slots = 4
{model}
"""


class TimedStream(Stream):
    """A stream that remembers when its tokens came."""

    def __init__(self, session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> None:
        self.times: list[float] = []
        super().__init__(session, url, body)

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two lots of tokens."""
        return max(after - before for before, after in zip(self.times, self.times[1:], strict=False))

    def _take(self, line: bytes) -> None:
        super()._take(line)
        if b'"token_ids"' in line:
            self.times.append(time.monotonic())


class NodeProcess:
    """A Ray node with a process that stands for it: SIGTERM to that is the end of the node."""

    def __init__(self, process: Process, node_id: str) -> None:
        self._process = process
        self.node_id = node_id

    @classmethod
    async def start(cls, address: str) -> "NodeProcess":
        """Start one with the resource "godwit"."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.ray.nodeprocess", address), stdout=PIPE
        )
        assert process.stdout is not None
        return cls(process, (await process.stdout.readline()).decode().strip())

    def terminate(self) -> None:
        """What a cloud does that takes its machine back."""
        self._process.terminate()


class Fleet(Cluster):
    """A Ray cluster with a node for its head and nodes that have the resource "godwit"; Godwit runs on these.

    Leaving it stops both, and fails where any process of theirs is left.
    """

    def __init__(self, num_workers: int = 2, model: str = MODEL, **head_node: Any) -> None:
        super().__init__(Settings(), 0)
        self._num_workers = num_workers
        self._model = model
        self._head_node = head_node
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.marked = Marked()
        self.nodes: list[Any] = []

    async def __aenter__(self) -> "Fleet":
        # Short, since it is part of the paths of Unix sockets.
        self._folder = Path(tempfile.mkdtemp(prefix="gr-"))
        self.admin = AdminClient(self.url)
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        self.marked.__enter__()
        try:
            await asyncio.to_thread(self._start_ray)
            config = self._folder / "godwit.toml"
            config.write_text(CONFIG.format(port=self._port, model=self._model))
            self._config = str(config)
            up = await self.up()
            said, _ = await up.communicate()
            assert up.returncode == 0, said.decode()
            await self.has_workers(self._num_workers)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        try:
            self._show_logs()  # which pytest shows where a test failed
            await self.godwit("down")
            assert not self.own_pids(), self.own_pids()
        finally:
            left = await self._close()
        assert not left, left

    def _show_logs(self) -> None:
        """What our processes wrote, for whoever reads why a test failed."""
        for log in sorted(self._folder.glob("session_latest/logs/*")):
            if log.name.startswith("godwit-") or (log.name.startswith("worker-") and log.suffix == ".err"):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")

    async def _close(self) -> dict[int, str]:
        """Stop everything; what had to be killed."""
        await self.session.close()
        await self.admin.close()
        if hasattr(self, "ray"):
            await asyncio.to_thread(self.ray.shutdown)
            end = time.monotonic() + DEADLINE_S
            while self.marked.pids() and time.monotonic() < end:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.1)
        left = self.marked.pids()
        self.marked.kill()
        self.marked.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)
        return left

    def _start_ray(self) -> None:
        head = {**NODE, "temp_dir": str(self._folder), "num_cpus": 0, **self._head_node}
        self.ray = RayCluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        for _ in range(self._num_workers):
            self._add_node()

    def _add_node(self) -> None:
        self.nodes.append(self.ray.add_node(**NODE, num_cpus=1, resources={"godwit": 1}))

    async def add_node(self) -> Any:
        """One more node with the resource; returns before it has a worker."""
        await asyncio.to_thread(self._add_node)
        return self.nodes[-1]

    async def ready(self, num_workers: int = 2) -> None:
        """Have at least so many workers, all free."""
        while len(self.nodes) < num_workers:
            await self.add_node()
        await self.has_workers(len(self.nodes))
        await self.is_idle()

    async def ends(self, node: Any) -> None:
        """Wait until Ray knows that a node is gone."""
        self.nodes.remove(node)
        end = time.monotonic() + DEADLINE_S
        while self.is_alive_to_ray(node):
            assert time.monotonic() < end
            await asyncio.sleep(0.1)

    async def add_node_as_process(self) -> "NodeProcess":
        """A node with the resource, as `ray start --block` starts one."""
        node = await NodeProcess.start(self.ray.address)
        self.nodes.append(node)
        return node

    async def up(self, *arguments: str) -> Process:
        """Run `godwit ray up`."""
        return await self._begin("up", "--config", self._config, "--resource", "godwit=1", *arguments)

    async def godwit(self, *arguments: str, status: int = 0) -> str:
        """Run `godwit ray …` to its end; what it said."""
        process = await self._begin(*arguments)
        said, _ = await process.communicate()
        assert process.returncode == status, said.decode()
        return said.decode()

    async def _begin(self, *arguments: str) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "godwit", "ray", *arguments, "--address", self.ray.address),
            stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    def own_pids(self) -> dict[int, str]:
        """Heads and workers that run, with their commands."""
        return {pid: command for pid, command in self.marked.pids().items() if "-m godwit" in command}

    def open(self, body: Mapping[str, Any]) -> TimedStream:
        """Ask for a completion; returns before the answer begins."""
        return TimedStream(self.session, self.url, body)

    async def begun(self, bodies: list[dict[str, Any]], num_tokens: int = 5) -> list[TimedStream]:
        """Streams that have had so many tokens."""
        streams = [self.open(body) for body in bodies]
        for stream in streams:
            await stream.has(num_tokens)
        return streams

    async def has_workers(self, number: int) -> list[str]:
        """Wait until so many workers have joined; their names."""
        status = await self.admin_until(number)
        return [worker.name for worker in status.workers]

    async def admin_until(self, num_workers: int) -> Any:
        """The first status with so many workers, also where the head comes only now."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                return await self.until(lambda status: len(status.workers) == num_workers, DEADLINE_S)
            except LinkError:
                assert time.monotonic() < end
                await asyncio.sleep(0.1)

    def worker_of(self, node: Any) -> str:
        """The name of a node's worker."""
        return f"127.0.0.1-{node.node_id[:8]}"

    def process_of(self, node: Any) -> int:
        """The process of a node's worker: its parent is an actor, whose parent is the node's raylet."""
        raylet = self.raylet_of(node)
        workers = [pid for pid, command in self.marked.pids().items() if "godwit worker" in command]
        return next(pid for pid in workers if parent(parent(pid)) == raylet)

    def raylet_of(self, node: Any) -> int:
        """The process of a node's raylet."""
        return int(node.all_processes["raylet"][0].process.pid)

    def head_actor(self) -> int:
        """The process of the head's actor."""
        return next(pid for pid, command in self.marked.pids().items() if command.startswith("ray::Head"))

    def head(self) -> int:
        """The head's own process."""
        return next(pid for pid, command in self.marked.pids().items() if "godwit head" in command)

    def is_alive_to_ray(self, node: Any) -> bool:
        """Whether Ray holds a node to be alive."""
        table = self.ray.global_state.node_table()
        return any(one["NodeID"] == node.node_id and one["Alive"] for one in table)

    def drain(self, node: Any, deadline_s: float) -> float:
        """A reclaim notice through Ray; the wall-clock time by which the node must be empty."""
        end = time.time() + deadline_s
        reason = autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION
        gcs = GcsClient(address=self.ray.address)
        is_accepted, why = gcs.drain_node(node.node_id, reason, "spot reclaim", int(end * 1000))
        assert is_accepted, why
        return end

    async def kill(self, pid: int) -> None:  # type: ignore[override]  # a process, not a worker by name
        """End a process with SIGKILL; returns when it is gone."""
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + DEADLINE_S
        while is_running(pid):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
