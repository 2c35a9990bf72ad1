"""Loads that are cut short while an engine's server, a child process, still starts: nothing of it stays."""

import asyncio
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Literal

import pytest

from godwit.config import ModelSettings, Settings, WorkerSettings
from godwit.protocol.model_messages import Load, ModelChanged, Unload
from godwit.types import ModelName
from godwit.worker.app import run_worker
from tests.engines.test_child import is_there
from tests.worker.files import until
from tests.worker.test_app import joined

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)
NAME = ModelName("smollm2-135m")
# Never answers, and says in a file that it runs.
SILENT = """
import os, sys, time
with open(sys.argv[1], "a") as note: note.write(f"{os.getpid()}\\n")
time.sleep(1000)
"""


def silent(tmp_path: Path, preload: Literal["device", "none"]) -> tuple[Settings, Path]:
    """A worker whose one model has a server that is never ready, and the file with the servers' pids."""
    note = tmp_path / "pids"
    command = shlex.join((sys.executable, "-c", SILENT, str(note)))
    model = ModelSettings(name=NAME, engine="llama-server", preload=preload, options={"command": command})
    store = str(tmp_path / "store")
    return Settings(models=(model,), worker=WorkerSettings(checkpoint_dir=store, context_tokens=64)), note


async def started(note: Path, num: int = 1) -> int:
    """The pid of the server that was started as the so many-th."""

    def lines() -> list[str]:
        return note.read_text().splitlines(keepends=True) if note.exists() else []

    await until(lambda: len(lines()) >= num and lines()[num - 1].endswith("\n"))
    return int(lines()[num - 1])


def test_an_unload_ends_a_load_at_once_and_a_later_one_begins_anew(tmp_path: Path) -> None:
    settings, note = silent(tmp_path, "none")

    async def scenario() -> None:
        async with joined(settings) as (head, _):
            for num in (1, 2):
                await head.order(Load(NAME))
                pid = await started(note, num)
                await head.order(Unload(NAME))
                changed = await head.hear(ModelChanged)
                assert (changed.model.is_loaded, changed.error) == (
                    False,
                    f"{NAME} was unloaded before it was loaded",
                )
                await until(lambda pid=pid: not is_there(pid))  # type: ignore[misc]

    asyncio.run(scenario())


def test_a_worker_that_leaves_stops_a_server_that_still_starts(tmp_path: Path) -> None:
    settings, note = silent(tmp_path, "none")

    async def scenario() -> int:
        async with joined(settings) as (head, _):
            await head.order(Load(NAME))
            return await started(note)

    pid = asyncio.run(scenario())
    assert not is_there(pid)


def test_a_worker_that_is_stopped_while_it_preloads_stops_its_server(tmp_path: Path) -> None:
    settings, note = silent(tmp_path, "device")

    async def scenario() -> int:
        working = asyncio.create_task(run_worker(settings, "http://127.0.0.1:1", "w"))
        pid = await started(note)
        working.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait([working])
        assert working.cancelled()
        return pid

    pid = asyncio.run(scenario())
    assert not is_there(pid)
