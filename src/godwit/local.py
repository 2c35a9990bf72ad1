"""A whole cluster on this machine: a head in this process, workers in processes of their own."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from godwit.client import AdminClient, ClusterStatus
from godwit.config import ModelSettings, Settings
from godwit.errors import GodwitError
from godwit.head import run_head
from godwit.processes import WorkerProcess, start_worker, stop_all

POLL_S = 0.05


class StartError(GodwitError):
    """A process that belongs to the cluster did not come up; the message has the end of its output."""


class Site(Struct, frozen=True):
    """Where a worker runs: `worker` replaces some of its settings, `prefix` stands before its command.

    `models` are those that it serves, None: all of the cluster's, from the same files.
    """

    worker: Mapping[str, Any] = {}
    prefix: tuple[str, ...] = ()
    models: tuple[ModelSettings, ...] | None = None


class LocalCluster:
    """An async context manager: inside it the head listens and all workers have joined.

    Leaving it stops everything that it started, by process id. `sites` has the workers that do not run just
    here; `on_wait` is told which workers are missing.
    """

    def __init__(
        self,
        settings: Settings,
        num_workers: int = 2,
        *,
        logs: Path | None = None,
        sites: Mapping[str, Site] | None = None,
        on_wait: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.names = [f"w{number}" for number in range(1, num_workers + 1)]
        self._has_own_logs = logs is None
        self.logs = logs or Path(tempfile.mkdtemp(prefix="godwit-"))
        self.workers: dict[str, WorkerProcess] = {}
        self._sites = dict(sites or {})
        self._on_wait = on_wait
        self._started_ns: dict[str, int] = {}

    async def __aenter__(self) -> "LocalCluster":
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"the workers' output cannot go to {self.logs}: {error.strerror}") from error
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.serving = asyncio.ensure_future(run_head(self.settings, listening.set_result))
        try:
            await asyncio.wait((self.serving, listening), return_when=asyncio.FIRST_COMPLETED)
            if self.serving.done():
                self.serving.result()
            self.url = listening.result()
            security = self.settings.security
            self.admin = AdminClient(self.url, security.admin_key)
            for name in self.names:
                await self.start(name)
            await self.joined(self.names)
        except BaseException:
            await self._stop()
            if self._has_own_logs and not self.workers:
                shutil.rmtree(self.logs, ignore_errors=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C is a good end too, unless a worker has ended by itself: its output is what says why.
        is_well = error is None or (
            kind is asyncio.CancelledError and all(worker.is_running for worker in self.workers.values())
        )
        await self._stop()
        if self._has_own_logs and is_well:
            shutil.rmtree(self.logs, ignore_errors=True)

    async def start(self, name: str) -> None:
        """Start a worker's process, or a new life of one that has ended; returns before it has joined."""
        self._started_ns[name] = time.time_ns()
        site = self._sites.get(name, Site())
        settings = replace(
            self.settings,
            worker=replace(self.settings.worker, **site.worker),
            models=self.settings.models if site.models is None else site.models,
        )
        log = self.logs / f"{name}.log"
        self.workers[name] = await start_worker(name, self.url, settings, log, site.prefix)

    async def kill(self, name: str) -> None:
        """End a worker with SIGKILL; returns when its process is gone."""
        self.workers[name].kill()
        await self.workers[name].wait()

    async def joined(self, names: list[str]) -> None:
        """Wait until these workers' present lives are connected; StartError where one ends first."""
        while True:
            status = await self.admin.status()
            lives = {worker.name: worker.incarnation for worker in status.workers}
            if not (missing := [name for name in names if lives.get(name, 0) < self._started_ns[name]]):
                return
            for name in missing:
                if not self.workers[name].is_running:
                    code = await self.workers[name].wait()
                    tail = self.workers[name].log_tail()
                    raise StartError(f"worker {name} ended with status {code}:\n{tail}")
            self._on_wait(missing)
            await asyncio.sleep(POLL_S)

    async def until(self, is_so: Callable[[ClusterStatus], bool], timeout_s: float = 60.0) -> ClusterStatus:
        """The first status for which `is_so` holds; TimeoutError where none is within `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            while True:
                if is_so(status := await self.admin.status()):
                    return status
                await asyncio.sleep(POLL_S)

    async def _stop(self) -> None:
        await stop_all(list(self.workers.values()))
        if hasattr(self, "admin"):
            await self.admin.close()
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
