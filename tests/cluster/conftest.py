"""Fixtures: one event loop for all of these tests, and the clusters that several of them share."""

from collections.abc import AsyncIterator, Iterator

import pytest

from godwit.config import ModelSettings, WorkerSettings
from tests.cluster.harness import Cluster, fake, settings
from tests.cluster.reference import Reference


@pytest.fixture(scope="package")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """What serves in production: asyncio with uvloop."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="package")
async def real_cluster(anyio_backend: object) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- its loop is needed
    """Two workers with the built-in model at F16."""
    model = ModelSettings(name="smollm2-135m")
    async with Cluster(settings(model, worker=WorkerSettings(slots=4, context_tokens=1024))) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    """The same model, in this process."""
    model = Reference("smollm2-135m")
    yield model
    model.close()


@pytest.fixture(scope="module")
async def fake_cluster(anyio_backend: object) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- its loop is needed
    """Two workers with the deterministic engine: "fake" never ends by itself, "ends" does at random."""
    models = (fake(decode_s=0.005), fake("ends", decode_s=0.005, eos_probability=0.03))
    async with Cluster(settings(*models, worker=WorkerSettings(slots=16))) as cluster:
        yield cluster
