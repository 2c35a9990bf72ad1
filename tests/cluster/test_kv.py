"""Requests that move by their KV between real processes: the unmoved answer, whatever happens to the KV."""

from typing import Any

import pytest

from godwit.config import ModelSettings, WorkerSettings
from godwit.protocol.entry import MoveRecord
from tests.cluster.harness import Cluster, check_whole, fake, settings
from tests.cluster.streams import Answer
from tests.cluster.test_continuation_real import CHAT, GREEDY, QUESTION

pytestmark = pytest.mark.anyio

SEEDED = {**CHAT, "temperature": 0.9, "top_p": 0.95, "top_k": 60, "seed": 4, "ignore_eos": True}
LOGPROBS = {**GREEDY, "logprobs": True, "top_logprobs": 3}
CUTS = (5, 20)


async def moved(cluster: Cluster, body: dict[str, Any], method: str) -> tuple[Answer, list[MoveRecord]]:
    """The answer to a request that went to the other worker and back, and how it went."""
    stream = cluster.open(body)
    status = await cluster.wait_for(lambda status: len(status.requests) == 1)
    request, records = status.requests[0].id, []
    for cut in CUTS:
        await stream.has(cut)
        source = (await cluster.find(request)).worker
        records.append(await cluster.move(request, "w2" if source == "w1" else "w1", method=method))
    return await stream.end(), records


@pytest.mark.parametrize("body", [GREEDY, SEEDED, LOGPROBS], ids=["greedy", "seeded", "logprobs"])
@pytest.mark.parametrize("method", ["kv", "split"])
async def test_a_request_that_moves_by_kv_is_the_unmoved_one(
    real_cluster: Cluster, body: dict[str, Any], method: str
) -> None:
    # Long enough for a split to ship something, by the assumed constants.
    body = {**body, "messages": [{"role": "user", "content": QUESTION * 8}]}
    unmoved = await real_cluster.answer(body)
    answer, records = await moved(real_cluster, body, method)
    assert [(one.method, one.outcome) for one in records] == [(method, "done")] * len(CUTS), records
    assert all(one.kv_bytes > 20_000 * one.kv_tokens > 0 for one in records)
    assert answer.choices == unmoved.choices, "not the same to the last digit of every logprob"
    assert answer.usage == unmoved.usage


async def test_corrupt_kv_is_computed_instead() -> None:
    model = ModelSettings(name="smollm2-135m")
    chosen = settings(model, worker=WorkerSettings(slots=2, context_tokens=1024))
    async with Cluster(chosen, faults={"w2": "corrupt=KvPart"}) as cluster:
        unmoved = await cluster.answer(GREEDY)
        stream = await cluster.started(GREEDY, 5)
        request = (await cluster.state()).requests[0]
        if request.worker == "w2":
            await cluster.move(request.id, "w1", method="tokens")
        record = await cluster.move(request.id, "w2", method="kv")
        assert (record.method, record.outcome) == ("kv→tokens", "done")
        assert record.kv_problem == "its digest is wrong" and record.kv_tokens == 0
        answer = await stream.end()
        assert (answer.only.ids, answer.error) == (unmoved.only.ids, None)


async def test_a_destination_that_dies_with_kv_under_way_costs_nothing() -> None:
    asked = {"model": "fake", "prompt": "x" * 3000, "max_tokens": 200, "temperature": 0}
    chosen = settings(fake(decode_s=0.01), worker=WorkerSettings(slots=2))
    async with Cluster(chosen, faults={"w2": "KvPart"}) as cluster:
        stream = await cluster.started(asked, 3)
        request = (await cluster.state()).requests[0]
        assert request.worker == "w1"
        record = await cluster.move(request.id, "w2", method="kv")
        assert (record.method, record.outcome) == ("kv", "failed")
        await check_whole(stream, asked)


async def test_engines_of_another_build_exchange_tokens_only() -> None:
    asked = {"model": "fake", "prompt": "x" * 3000, "max_tokens": 200, "temperature": 0}
    mine = settings(fake(decode_s=0.01), worker=WorkerSettings(slots=2))
    other = settings(fake(decode_s=0.01, kv_layout="another build"), worker=WorkerSettings(slots=2))
    async with Cluster(mine, variants={"w2": other}) as cluster:
        stream = await cluster.started(asked, 3)
        request = (await cluster.state()).requests[0]
        record = await cluster.move(request.id, "w2" if request.worker == "w1" else "w1", method="kv")
        assert (record.method, record.outcome) == ("kv→tokens", "done")
        assert record.kv_problem is not None and "another build" in record.kv_problem
        await check_whole(stream, asked)
