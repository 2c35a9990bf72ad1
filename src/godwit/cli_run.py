"""Running a head, a worker, or a whole cluster on this machine until Ctrl-C."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from godwit.config import Settings
from godwit.fleet.headprocess import HeadOrder, hold, with_node
from godwit.head import run_head
from godwit.local import LocalCluster, StartError
from godwit.processes import WorkerProcess, run, with_parent
from godwit.worker.app import run_worker


def run_cluster(settings: Settings, num_workers: int, logs: Path | None, console: Console) -> None:
    """Serve with a head in this process and workers in processes of their own."""
    waiting = console.status("starting the head")

    def show_missing(names: list[str]) -> None:
        models = ", ".join(model.name for model in settings.models)
        waiting.update(f"starting {', '.join(names)} with {models} (output in {cluster.logs})")

    async def serve() -> None:
        with _listen_errors(settings):
            async with contextlib.AsyncExitStack() as stack:
                with waiting:
                    await stack.enter_async_context(cluster)
                _show_ready(cluster, console)
                await _until_end(cluster, console)

    def kill() -> None:
        for worker in cluster.workers.values():
            worker.kill()

    cluster = LocalCluster(settings, num_workers, logs=logs, on_wait=show_missing)
    run(serve(), kill)


def run_head_alone(settings: Settings, console: Console) -> None:
    """Serve as a head that workers join from elsewhere."""

    def show(url: str) -> None:
        text = f"The head listens on {url}; workers join with: godwit worker --join {url}"
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    with _listen_errors(settings):
        run(run_head(settings, show))


def run_head_with(
    settings: Settings, beside: Callable[[str], Coroutine[Any, Any, None]], ready: Callable[[str], None]
) -> None:
    """Serve as a head; `beside` runs with its URL as long as it does, and ends after it."""

    async def serve() -> None:
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(run_head(settings, listening.set_result))
        tasks: list[asyncio.Future[Any]] = [serving]
        try:
            await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                ready(listening.result())
                tasks.append(asyncio.ensure_future(beside(listening.result())))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    with _listen_errors(settings):
        run(serve())


def run_supervised_head(order: HeadOrder) -> None:
    """Serve as the one head of a Ray node until told to end, or until the node is gone."""
    with hold(order.lock), _listen_errors(order.settings):
        run(with_node(run_head(order.settings, lambda _: None), order.node_pid))


def run_worker_alone(settings: Settings, join_url: str, name: str) -> None:
    """Serve as a worker until told to leave."""
    run(run_worker(settings, join_url, name))


def run_supervised_worker(settings: Settings, join_url: str, name: str) -> None:
    """Serve as a worker until told to leave, or until the parent process is gone."""
    run(with_parent(run_worker(settings, join_url, name)))


def _show_ready(cluster: LocalCluster, console: Console) -> None:
    model = cluster.settings.models[0].name
    body = f'{{"model": "{model}", "prompt": "The godwit", "stream": true}}'
    workers = ", ".join(cluster.names) or "none"
    lines = (
        f"Godwit serves on {cluster.url}/v1; workers: {workers} (output in {cluster.logs}). Ctrl-C stops it.",
        "Try, in another terminal:",
        f"  curl -N {cluster.url}/v1/completions -H 'content-type: application/json' -d '{body}'",
    )
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


async def _until_end(cluster: LocalCluster, console: Console) -> None:
    async def report(worker: WorkerProcess) -> None:
        status = await worker.wait()
        console.print(f"Worker {worker.name} ended with status {status}; its output is in {worker.log}")

    reports = [asyncio.ensure_future(report(worker)) for worker in cluster.workers.values()]
    try:
        await cluster.serving
    finally:
        for task in reports:
            task.cancel()
        await asyncio.gather(*reports, return_exceptions=True)


@contextlib.contextmanager
def _listen_errors(settings: Settings) -> Iterator[None]:
    """Say what to do where the head's address cannot be had."""
    host, port = settings.head.host, settings.head.port
    try:
        yield
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
