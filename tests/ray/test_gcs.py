"""Ray's own head goes away for a while: Godwit does not need it to serve."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.headprocess import free_port
from tests.ray.fleet import Fleet
from tests.ray.test_fleet import bodies, check_all

pytestmark = pytest.mark.anyio


@pytest.fixture
async def fleet(anyio_backend: object, tmp_path: Path) -> AsyncIterator[Fleet]:  # noqa: ARG001 -- its loop
    """A Ray cluster whose control service keeps its state on disk, as one that shall survive must."""
    stored = {"gcs_storage": "rocksdb", "gcs_storage_path": str(tmp_path)}
    async with Fleet(gcs_server_port=free_port(), _system_config=stored) as fleet:
        yield fleet


async def test_ray_s_control_service_restarts_and_streams_go_on(fleet: Fleet) -> None:
    asked = bodies(4, 400)
    streams = await fleet.begun(asked)
    fleet.ray.head_node.kill_gcs_server()
    for stream in streams:
        await stream.has(200)  # they run without it
    fleet.ray.head_node.start_gcs_server()
    await fleet.add_node()
    await fleet.has_workers(3)
    await check_all(streams, asked)
    for stream in streams:
        assert await fleet.outcomes(stream.request) == []
