"""Running a head, a worker, or a whole cluster on this machine until Ctrl-C."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from godwit.client import AdminClient
from godwit.config import Settings
from godwit.errors import GodwitError
from godwit.head import run_head
from godwit.processes import WorkerProcess, parent_gone, start_worker, stop_all
from godwit.worker.app import run_worker

_POLL_S = 0.2


class StartError(GodwitError):
    """Something that this command started did not come up; the message says why."""


def run(main: Coroutine[Any, Any, None], kill: Callable[[], None] = lambda: None) -> None:
    """Run `main` until it ends or Ctrl-C or SIGTERM cancels it; a second signal calls `kill` and exits."""
    with contextlib.suppress(asyncio.CancelledError):
        uvloop.run(_until_signal(main, kill))


async def _until_signal(main: Coroutine[Any, Any, None], kill: Callable[[], None]) -> None:
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if task.cancelling():
            kill()
            os._exit(128 + signal.SIGINT)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await task


async def head(settings: Settings, console: Console) -> None:
    """Serve as a head until cancelled."""
    await _listen(settings, run_head(settings, lambda url: console.print(f"Head listening on {url}/v1")))


async def worker(settings: Settings, join_url: str, name: str) -> None:
    """Serve as a worker until cancelled or told to leave."""
    await run_worker(settings, join_url, name)


async def supervised_worker(settings: Settings, join_url: str, name: str) -> None:
    """Serve as a worker until told to leave, or until the parent process is gone."""
    serving = asyncio.ensure_future(run_worker(settings, join_url, name))
    orphaned = asyncio.ensure_future(parent_gone())
    try:
        await asyncio.wait((serving, orphaned), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        await _cancel(serving, orphaned)


class LocalCluster:
    """A head in this process and workers in processes of their own."""

    def __init__(self, settings: Settings, num_workers: int, logs: Path | None, console: Console) -> None:
        self._settings = settings
        self._names = [f"w{number}" for number in range(1, num_workers + 1)]
        self._logs = logs
        self._console = console
        self._workers: list[WorkerProcess] = []

    def kill(self) -> None:
        """Kill every worker at once."""
        for worker in self._workers:
            worker.kill()

    async def serve(self) -> None:
        """Start everything, say so, and serve until cancelled; then stop all that was started."""
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(
            _listen(self._settings, run_head(self._settings, listening.set_result))
        )
        try:
            await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            url = listening.result()
            await self._start_workers(url)
            self._show_ready(url)
            await self._until_end(serving)
        finally:
            await stop_all(self._workers)
            await _cancel(serving)

    async def _start_workers(self, url: str) -> None:
        logs = self._logs or Path(tempfile.mkdtemp(prefix="godwit-"))
        logs.mkdir(parents=True, exist_ok=True)
        for name in self._names:
            self._workers.append(await start_worker(name, url, self._settings, logs / f"{name}.log"))
        security = self._settings.security
        key = security.admin_key or next(iter(security.api_keys), None)
        models = ", ".join(model.name for model in self._settings.models)
        with self._console.status("") as progress:
            async with AdminClient(url, key) as client:
                while missing := await self._missing(client):
                    progress.update(f"{', '.join(missing)}: starting with {models} (output in {logs})")
                    await asyncio.sleep(_POLL_S)

    async def _missing(self, client: AdminClient) -> list[str]:
        for worker in self._workers:
            if not worker.is_running:
                status = await worker.wait()
                raise StartError(f"worker {worker.name} ended with status {status}:\n{worker.log_tail()}")
        joined = {worker.name for worker in (await client.status()).workers}
        return [name for name in self._names if name not in joined]

    def _show_ready(self, url: str) -> None:
        model = self._settings.models[0].name
        logs = self._workers[0].log.parent if self._workers else "none"
        self._console.print(
            f"Godwit serves on {url}/v1 with workers {', '.join(self._names)} (output in {logs})."
        )
        self._console.print("Ctrl-C stops it. Try, in another terminal:")
        self._console.print(
            f"  curl -N {url}/v1/completions -H 'content-type: application/json' "
            f'-d \'{{"model": "{model}", "prompt": "The godwit", "stream": true}}\'',
            soft_wrap=True,
            highlight=False,
        )

    async def _until_end(self, serving: asyncio.Future[None]) -> None:
        reports = [asyncio.ensure_future(self._report_end(worker)) for worker in self._workers]
        try:
            await serving
        finally:
            await _cancel(*reports)

    async def _report_end(self, worker: WorkerProcess) -> None:
        status = await worker.wait()
        self._console.print(f"Worker {worker.name} ended with status {status}; its output is in {worker.log}")


async def _listen(settings: Settings, serving: Coroutine[Any, Any, None]) -> None:
    """Run a head; StartError where its address cannot be had."""
    host, port = settings.head.host, settings.head.port
    try:
        await serving
    except socket.gaierror as error:
        raise StartError(f"head.host: {host} is no address of this machine: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is taken: stop what listens there, or choose another with --port"
            ) from error
        if error.errno == errno.EACCES:
            raise StartError(f"port {port} needs more rights; choose one above 1023 with --port") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartError(f"head.host: {host} is no address of this machine") from error
        raise


async def _cancel(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
