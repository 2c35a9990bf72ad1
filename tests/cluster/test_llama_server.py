"""Requests between the embedded engine and llama.cpp's own server, with the same GGUF at F16."""

import importlib.util
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from godwit.config import ModelSettings, WorkerSettings
from tests.cluster.harness import Cluster, settings
from tests.cluster.reference import Reference
from tests.cluster.streams import Stream
from tests.cluster.test_continuation_real import check_equal

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

EMBEDDED = ModelSettings(name="smollm2-135m")
SERVED = replace(EMBEDDED, engine="llama-server")
ROOM = WorkerSettings(slots=1, context_tokens=1024)
QUESTION = "Describe the bird called godwit: its colour, its flight and its food."
BODY: dict[str, Any] = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 120,
    "temperature": 0,
    "ignore_eos": True,
}

# The two are other builds: their logits differ more than those of one engine, alone and in a batch.
OTHER_KERNELS_TIES = 12
SEEDED = {**BODY, "max_tokens": 90, "temperature": 0.6, "top_p": 0.95, "seed": 11, "presence_penalty": 0.3}


@pytest.fixture(scope="module")
async def cluster(anyio_backend: object) -> AsyncIterator[Cluster]:  # noqa: ARG001 -- its loop is needed
    """A worker that embeds llama.cpp, w1, and one whose instance is a server, w2; each takes one request."""
    served = settings(SERVED, worker=ROOM)
    async with Cluster(settings(EMBEDDED, worker=ROOM), variants={"w2": served}) as cluster:
        yield cluster


async def started_on(cluster: Cluster, worker: str, body: dict[str, Any] = BODY) -> tuple[Stream, str]:
    """An answer that has begun at this worker, and its request: of two the one that began there."""
    both = [await cluster.started(body) for _ in range(2)]
    wanted = next(one for one in (await cluster.state()).requests if one.worker == worker)
    for stream in both:
        if stream.request != wanted.id:
            await stream.leave()
    await cluster.wait_for(lambda status: len(status.requests) == 1)
    return next(stream for stream in both if stream.request == wanted.id), wanted.id


@pytest.mark.parametrize("body", [BODY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize(("source", "destination"), [("w1", "w2"), ("w2", "w1")])
async def test_a_request_goes_on_identically_in_the_other_engine(
    cluster: Cluster, reference: Reference, source: str, destination: str, body: dict[str, Any]
) -> None:
    stream, _ = await started_on(cluster, source, body)
    unmoved = await stream.end()
    stream, request = await started_on(cluster, source, body)
    record = await cluster.move(request, destination)
    assert (record.outcome, record.source, record.destination) == ("done", source, destination), record.reason
    answer = await stream.end()
    check_equal(reference, body, answer, unmoved, OTHER_KERNELS_TIES)
    assert 0 < (record.num_output or 0) < len(answer.only.ids)


async def test_a_request_fails_over_from_a_worker_whose_server_it_was(
    cluster: Cluster, reference: Reference
) -> None:
    stream, _ = await started_on(cluster, "w2")
    unmoved = await stream.end()
    stream, _ = await started_on(cluster, "w2")
    await cluster.kill("w2")
    check_equal(reference, BODY, await stream.end(), unmoved, OTHER_KERNELS_TIES)
    await cluster.restart("w2")
