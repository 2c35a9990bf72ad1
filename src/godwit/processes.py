"""Processes that end when they should: workers as children, signals, and parents that are gone.

The parent writes one line to the worker's stdin, its order, and keeps the pipe open: when the parent ends,
however that happens, the pipe closes and the worker stops. Secrets travel in the order, never in arguments.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from godwit.config import Settings
from godwit.errors import ConfigError, InvariantBrokenError

STOP_GRACE_S = 10.0
_LOG_TAIL_BYTES = 2000


class WorkerOrder(Struct, frozen=True):
    """All that a supervised worker needs to know."""

    name: str
    join_url: str
    settings: Settings


class WorkerProcess:
    """One running worker; `log` is the file that has its output."""

    def __init__(self, name: str, log: Path, process: Process) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait for its end; the exit status, or the negative number of the signal that ended it."""
        return await self._process.wait()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to end, and kill it if it has not after `grace_s`; returns when it is gone."""
        if self.is_running:
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        if self.is_running:
            self._process.kill()

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        text = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return "\n".join(text.splitlines()[-12:])


async def start_worker(
    name: str, join_url: str, settings: Settings, log: Path, prefix: Sequence[str] = ()
) -> WorkerProcess:
    """Start `godwit worker` in a session of its own, so that Ctrl-C reaches only the parent.

    `prefix` is a command that becomes the worker, such as `nsenter`, so that the process id is the worker's.
    """
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(*prefix, sys.executable, "-m", "godwit", "worker", "--supervised"),
            stdin=PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    if process.stdin is None:
        raise ValueError("the worker's stdin is a pipe")
    process.stdin.write(msgspec.json.encode(WorkerOrder(name, join_url, settings)) + b"\n")
    return WorkerProcess(name, log, process)


async def stop_all(workers: list[WorkerProcess], grace_s: float = STOP_GRACE_S) -> None:
    """Stop all of them at the same time."""
    await asyncio.gather(*(worker.stop(grace_s) for worker in workers))


def read_order() -> WorkerOrder:
    """The order on this process's stdin; blocks until it is there."""
    line = sys.stdin.buffer.readline()
    try:
        return msgspec.json.decode(line, type=WorkerOrder)
    except msgspec.MsgspecError as error:
        raise ConfigError("--supervised is for `godwit serve`, which writes the settings to stdin") from error


def run(main: Coroutine[Any, Any, None], kill: Callable[[], None] = lambda: None) -> None:
    """Run `main` until it ends or Ctrl-C or SIGTERM cancels it; a second signal calls `kill` and exits.

    A broken invariant ends it too, wherever in the loop it was noticed: going on could corrupt a stream.
    """
    with contextlib.suppress(asyncio.CancelledError):
        uvloop.run(_until_signal(main, kill))


async def with_parent(main: Coroutine[Any, Any, None]) -> None:
    """Await `main`, and cancel it when the process that started this one closes the pipe or is gone."""
    serving = asyncio.ensure_future(main)
    orphaned = asyncio.ensure_future(parent_gone())
    try:
        await asyncio.wait((serving, orphaned), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        for task in (serving, orphaned):
            task.cancel()
        await asyncio.gather(serving, orphaned, return_exceptions=True)


async def parent_gone() -> None:
    """Return once the process that started this one has closed the pipe, or has ended."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    try:
        await reader.read()
    finally:
        transport.close()


async def _until_signal(main: Coroutine[Any, Any, None], kill: Callable[[], None]) -> None:
    task = asyncio.ensure_future(main)
    broken: list[InvariantBrokenError] = []

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # What is raised in a callback or in a connection's task would only be logged.
        loop.default_exception_handler(context)
        if isinstance(error := context.get("exception"), InvariantBrokenError):
            broken.append(error)
            task.cancel()

    def stop() -> None:
        if task.cancelling():
            kill()
            os._exit(128 + signal.SIGINT)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    asyncio.get_running_loop().set_exception_handler(on_error)
    try:
        await task
    finally:
        if broken:
            raise broken[0]
