"""A head's process that outlives who started it, without Ray."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from godwit.client import AdminClient
from godwit.config import HeadSettings, ModelSettings, Settings
from godwit.errors import ConflictError, LinkError
from godwit.fleet.headprocess import HeadProcess, hold
from tests.cluster.headprocess import free_port
from tests.patience import DEADLINE_S
from tests.ray.marks import Marked

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """What serves in production."""
    return "asyncio"


def settings() -> Settings:
    """A head's, on a free port."""
    return Settings(head=HeadSettings(port=free_port()), models=(ModelSettings(name="fake", engine="fake"),))


async def listening(head: HeadProcess, url: str) -> int:
    """Wait until a head listens; its process id."""
    end = time.monotonic() + DEADLINE_S
    async with AdminClient(url) as admin:
        while True:
            try:
                await admin.status()
            except LinkError:
                assert time.monotonic() < end, head.log_tail()
                await asyncio.sleep(0.05)
            else:
                assert head.pid is not None
                return head.pid


async def gone(head: HeadProcess) -> None:
    """Wait until there is none."""
    async with asyncio.timeout(DEADLINE_S):
        while head.pid is not None:  # noqa: ASYNC110 -- it is no child, so that nobody tells
            await asyncio.sleep(0.05)


async def test_a_later_one_finds_it_and_stops_it(tmp_path: Path) -> None:
    lock, log, chosen = tmp_path / "lock", tmp_path / "log", settings()
    first = HeadProcess(lock, log)
    assert first.pid is None
    await first.start(chosen, os.getpid())
    pid = await listening(first, f"http://127.0.0.1:{chosen.head.port}")
    later = HeadProcess(lock, log)
    assert later.pid == pid
    await later.stop()
    assert first.pid is None
    await later.stop()  # nothing to do


async def test_of_two_that_are_started_one_stays(tmp_path: Path) -> None:
    chosen = settings()
    head = HeadProcess(tmp_path / "lock", tmp_path / "log")
    await head.start(chosen, os.getpid())
    pid = await listening(head, f"http://127.0.0.1:{chosen.head.port}")
    await head.start(chosen, os.getpid())
    async with asyncio.timeout(DEADLINE_S):
        while "a head runs on this node already" not in head.log_tail():  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0.05)
    assert head.pid == pid
    await head.stop()


async def test_one_that_is_stopped_before_it_has_the_lock_is_not_there_later(tmp_path: Path) -> None:
    head = HeadProcess(tmp_path / "lock", tmp_path / "log")
    with Marked() as marked:
        await head.start(settings(), os.getpid())
        await head.stop()
        async with asyncio.timeout(DEADLINE_S):
            while marked.pids():
                assert head.pid is None
                await asyncio.sleep(0.05)


async def test_it_ends_with_its_node(tmp_path: Path) -> None:
    node = await asyncio.create_subprocess_exec(sys.executable, "-c", "import signal; signal.pause()")
    chosen = settings()
    head = HeadProcess(tmp_path / "lock", tmp_path / "log")
    await head.start(chosen, node.pid)
    await listening(head, f"http://127.0.0.1:{chosen.head.port}")
    node.send_signal(signal.SIGKILL)
    await node.wait()
    await gone(head)


def test_the_lock_is_for_one(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    with hold(lock), pytest.raises(ConflictError, match="a head runs on this node already"):
        hold(lock)
    hold(lock).close()
