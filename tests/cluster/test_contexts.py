"""Workers of one model whose contexts differ: whoever is too short takes part in nothing that would break."""

import signal

import pytest

from godwit.config import WorkerSettings
from godwit.errors import ConflictError
from tests.cluster.harness import Cluster, check_whole, fake, settings

pytestmark = pytest.mark.anyio

SHORT, LONG = 128, 4096
MODEL = fake(decode_s=0.005)


def cluster_of(*contexts: int) -> Cluster:
    """A worker for each context: w1, w2, ..."""
    variants = {
        f"w{number}": settings(MODEL, worker=WorkerSettings(slots=2, context_tokens=context))
        for number, context in enumerate(contexts, 1)
    }
    return Cluster(settings(MODEL), len(contexts), variants=variants)


async def test_a_long_request_that_loses_its_server_goes_on_where_it_has_room() -> None:
    body = {"model": "fake", "prompt": "x", "max_tokens": 600, "temperature": 0}
    async with cluster_of(SHORT, LONG, LONG, SHORT) as cluster:
        stream = await cluster.started(body, 2 * SHORT)
        owner = (await cluster.find(stream.request)).worker
        assert owner in ("w2", "w3")
        cluster.signal(owner, signal.SIGKILL)
        await check_whole(stream, body)
        (record,) = await cluster.records(stream.request)
        assert {record.source, record.destination} == {"w2", "w3"}


async def test_a_text_that_is_longer_than_it_looks_is_sent_on() -> None:
    # The deterministic engine has a token a byte: four times as many as a text is guessed to have.
    body = {"model": "fake", "prompt": "x" * 2 * SHORT, "max_tokens": 20, "temperature": 0}
    async with cluster_of(SHORT, LONG) as cluster:
        await check_whole(cluster.open(body), body)
        body["prompt"] = "x" * 2 * LONG
        async with cluster.session.post(f"{cluster.url}/v1/completions", json=body) as response:
            error = (await response.json())["error"]
    assert (response.status, error["code"]) == (400, "context_length_exceeded")
    assert f"the context is {LONG}" in error["message"]


async def test_it_is_moved_to_a_shorter_one_by_force_only_and_not_once_it_is_too_long() -> None:
    body = {"model": "fake", "prompt": "x", "max_tokens": 600, "temperature": 0}
    async with cluster_of(SHORT, LONG) as cluster:
        stream = await cluster.started(body, 10)
        with pytest.raises(ConflictError, match="there it would be cut off"):
            await cluster.move(stream.request, "w1")
        await stream.has(SHORT)
        # How far it is, only the worker knows for certain: it declines.
        record = await cluster.move(stream.request, "w1", force=True)
        assert record.outcome == "failed" and f"the context is {SHORT}" in record.reason
        await check_whole(stream, body)
