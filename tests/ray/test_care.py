"""What keeps the head's process. There is no Ray cluster, and so there are no actors."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from godwit.config import HeadSettings, SecuritySettings, Settings
from godwit.fleet import rays
from godwit.fleet.headactor import HeadCare
from godwit.fleet.headprocess import HeadProcess
from godwit.fleet.plan import FleetPlan
from godwit.head import run_head
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.anyio


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("admin_key", [None, "another"])
async def test_a_port_that_another_head_has_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admin_key: str | None
) -> None:
    monkeypatch.setattr(rays, "actors", set)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    other = Settings(head=HeadSettings(port=0), security=SecuritySettings(admin_key=admin_key))
    serving = asyncio.create_task(run_head(other, listening.set_result))
    url = await listening
    ours = Settings(head=HeadSettings(port=int(url.rpartition(":")[2])), security=SecuritySettings())
    process = HeadProcess(tmp_path / "lock", tmp_path / "log")
    care = HeadCare(process, ours, os.getpid())
    caring = asyncio.create_task(care.run(FleetPlan(ours, {}), url))
    await until(lambda: caring.done() or (care.problem is not None and "is taken" in care.problem))
    assert not caring.done()
    assert not care.is_listening
    for task in (caring, serving):
        task.cancel()
    await asyncio.wait((caring, serving))
    assert process.pid is None
