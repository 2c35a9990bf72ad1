"""A head's process that outlives the actor which started it, and can be found again by the next one.

It is no child of the actor: Ray kills an actor's children with it, and the head has the clients'
connections. It ends when it is told to, or with its node: the raylet's process. While it runs it holds the
lock on a file with its id.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Coroutine
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from godwit.config import Settings
from godwit.errors import ConfigError, ConflictError
from godwit.processes import STOP_GRACE_S

POLL_S = 0.05
LOCK_S = 1.0
# It starts the head in a session of its own and ends, so that the head's parent is not the actor.
_LAUNCH = (
    "import subprocess, sys;"
    "head = [sys.executable, '-m', 'godwit', 'head', '--supervised'];"
    "print(subprocess.Popen(head, stdout=sys.stderr, start_new_session=True).pid)"
)


class HeadOrder(Struct, frozen=True):
    """All that a supervised head needs to know; it ends with the process `node_pid`."""

    settings: Settings
    lock: str
    node_pid: int


class HeadProcess:
    """The head of this node, if any: one at most can hold `lock`."""

    def __init__(self, lock: Path, log: Path) -> None:
        self.log = log
        self._lock = lock
        self._started: int | None = None  # a descriptor, since an id may soon be that of another process

    @property
    def pid(self) -> int | None:
        """Its process id; None where there is none."""
        try:
            with self._lock.open("rb") as file:
                # Shared, so that two who look do not take each other for a head.
                if _try_lock(file, fcntl.LOCK_SH):
                    return None
                return int(file.read() or 0) or None
        except FileNotFoundError:
            return None

    async def start(self, settings: Settings, node_pid: int) -> None:
        """Start one; returns before it listens. It ends at once where there is one already."""
        self._drop_started()
        order = HeadOrder(settings, str(self._lock), node_pid)
        with self.log.open("ab") as output:
            launcher = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _LAUNCH), stdin=PIPE, stdout=PIPE, stderr=output
            )
        # The pipe takes it all at once, so that it is there when the launcher has ended.
        said, _ = await launcher.communicate(msgspec.json.encode(order) + b"\n")
        # A launcher that failed has said why in the log.
        with contextlib.suppress(ProcessLookupError, ValueError):
            self._started = os.pidfd_open(int(said))

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to end, and kill it if it has not after `grace_s`; returns when it is gone."""
        self._drop_started()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if (pid := self.pid) is None:
                return
            with contextlib.suppress(ProcessLookupError):  # It may end just now.
                os.kill(pid, number)
            try:
                async with asyncio.timeout(grace_s):
                    await self._until_gone(pid)
            except TimeoutError:
                continue

    def _drop_started(self) -> None:
        """One that was started and has not got as far as the lock would be there later."""
        if self._started is None:
            return
        if self.pid is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._started, signal.SIGKILL)
        os.close(self._started)
        self._started = None

    async def _until_gone(self, pid: int) -> None:
        while self.pid == pid:  # noqa: ASYNC110 -- it is no child, so that nobody tells
            await asyncio.sleep(POLL_S)

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        text = self.log.read_bytes()[-2000:].decode(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-12:])


def read_head_order() -> HeadOrder:
    """The order on this process's stdin; blocks until it is there."""
    try:
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=HeadOrder)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            "--supervised is for `godwit ray up`, which writes the settings to stdin"
        ) from error


def hold(lock: str) -> IO[bytes]:
    """Take the lock until this process ends, and leave its id there; ConflictError where another has it."""
    file = Path(lock).open("ab")  # noqa: SIM115 -- open as long as this process lives
    end_s = time.monotonic() + LOCK_S
    while not _try_lock(file, fcntl.LOCK_EX):
        # Who only looks has it for a moment.
        if time.monotonic() > end_s:
            raise ConflictError(f"a head runs on this node already: its process id is in {lock}")
        time.sleep(POLL_S)
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


async def with_node(main: Coroutine[Any, Any, None], node_pid: int) -> None:
    """Await `main`, and cancel it when the process `node_pid` is gone."""
    serving = asyncio.ensure_future(main)
    over = asyncio.ensure_future(_ended(node_pid))
    try:
        await asyncio.wait((serving, over), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        for task in (serving, over):
            task.cancel()
        await asyncio.gather(serving, over, return_exceptions=True)


async def _ended(pid: int) -> None:
    """Return once a process is gone that need not be a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, over.set)
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _try_lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
