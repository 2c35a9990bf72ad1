"""Workers whose engine cannot continue everything exactly: avoided, refused, and where it must be, told.

w1's engine carries all. w2's carries none, says so, and really does not: what it continues is another output.
"""

import asyncio
import json
import signal
from typing import Any

import aiohttp
import pytest

from godwit.bench.expected import fake_answer
from godwit.errors import GodwitError
from godwit.protocol.entry import MoveRecord
from godwit.types import Promise, Sampling
from tests.cluster.harness import Cluster, check_whole, fake, settings
from tests.cluster.streams import Answer

pytestmark = pytest.mark.anyio

PROMPT = "hello"
SEED, BOTH = (Promise.SEED,), (Promise.SEED, Promise.PENALTIES)
GREEDY: dict[str, Any] = {"model": "fake", "prompt": PROMPT, "max_tokens": 400, "temperature": 0}
SEEDED = {**GREEDY, "temperature": 0.8, "seed": 7}
PENALIZED = {**SEEDED, "presence_penalty": 0.5}
# What the engines of w1 and w3 answer.
EXACT = fake_answer(PROMPT, Sampling(7, 400, temperature=0.8))[0]
EXACT_PENALIZED = fake_answer(PROMPT, Sampling(7, 400, temperature=0.8, presence_penalty=0.5))[0]


def mixed(*names: str) -> Cluster:
    """`w1` and `w2`; whoever else is started later has an engine that carries all."""
    exact = settings(fake(decode_s=0.01))
    limited = settings(fake(decode_s=0.01, carries="none"))
    return Cluster(exact, len(names), variants={"w2": limited})


def check_approximate(answer: Answer, exact: list[int], record: MoveRecord) -> None:
    """The right answer up to where `record` says that it went on elsewhere, and another one from there on."""
    assert answer.error is None
    assert answer.only.finish_reason == "length"
    assert answer.usage is not None and answer.usage["completion_tokens"] == len(exact)
    n = record.num_output
    assert 0 < n < len(exact) - 9
    assert answer.only.ids[:n] == exact[:n]
    # One token may be the same by chance.
    assert answer.only.ids[n : n + 9] != exact[n : n + 9]
    assert answer.godwit == {"continuation": "approximate", "broken": list(record.broken)}


async def counted(cluster: Cluster) -> dict[str, float]:
    """Approximate continuations by what was not kept."""
    name = "godwit_approximate_continuations_total"
    async with cluster.session.get(f"{cluster.url}/metrics") as response:
        lines = [line for line in (await response.text()).splitlines() if line.startswith(f"{name}{{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


async def test_by_hand_it_is_refused_unless_forced_and_the_stream_says_so() -> None:
    async with mixed("w1", "w2") as cluster:
        stream = await cluster.started(PENALIZED, 10)
        assert (await cluster.find(stream.request)).worker == "w1"
        with pytest.raises(GodwitError, match="its seed and its penalties would be lost"):
            await cluster.move(stream.request, "w2")
        record = await cluster.move(stream.request, "w2", force=True)
        assert (record.outcome, record.broken) == ("done", BOTH)
        check_approximate(await stream.end(), [token.id for token in EXACT_PENALIZED], record)
        assert await counted(cluster) == {"seed": 1, "penalties": 1}


async def test_what_promises_nothing_of_that_kind_moves_freely() -> None:
    async with mixed("w1", "w2") as cluster:
        stream = await cluster.started(GREEDY, 10)
        record = await cluster.move(stream.request, "w2")
        assert (record.outcome, record.broken) == ("done", ())
        await check_whole(stream, GREEDY)
        assert stream.answer.godwit is None
        unseeded = await cluster.started({**GREEDY, "temperature": 0.8}, 10)
        source = (await cluster.find(unseeded.request)).worker
        assert (await cluster.move(unseeded.request, "w2" if source == "w1" else "w1")).outcome == "done"
        assert (await unseeded.end()).godwit is None
        assert await counted(cluster) == {}


async def test_a_drain_prefers_who_can_and_else_takes_who_cannot() -> None:
    """w1 is drained beside w2 and w3: w3. Then w3, beside w2 alone: w2."""
    async with mixed("w1", "w2") as cluster:
        stream = await cluster.started({**SEEDED, "max_tokens": 1000}, 10)
        await cluster.start("w3")
        await cluster.joined(["w3"])
        await cluster.admin.drain("w1", None)
        await cluster.wait_for(lambda status: len(status.workers) == 2)
        assert (await cluster.find(stream.request)).worker == "w3"
        await cluster.admin.drain("w3", 30.0)
        await cluster.wait_for(lambda status: len(status.workers) == 1)
        exact = [one.id for one in fake_answer(PROMPT, Sampling(7, 1000, temperature=0.8))[0]]
        answer = await stream.end()
        first, second = await cluster.records(stream.request)
        assert (first.destination, first.broken) == ("w3", ())
        assert (second.destination, second.broken) == ("w2", SEED)
        check_approximate(answer, exact, second)
        assert await counted(cluster) == {"seed": 1}


async def test_a_failover_to_who_cannot_is_told_in_a_header_where_nothing_was_sent_yet() -> None:
    async with mixed("w1", "w2") as cluster:
        body = {**SEEDED, "return_token_ids": True}
        url = f"{cluster.url}/v1/completions"
        timeout = aiohttp.ClientTimeout(total=60.0)
        post = asyncio.create_task(cluster.session.post(url, json=body, timeout=timeout))
        status = await cluster.wait_for(lambda status: any(one.num_output >= 10 for one in status.requests))
        (request,) = status.requests
        assert request.worker == "w1"
        cluster.signal("w1", signal.SIGKILL)
        response = await post
        assert response.headers["x-godwit-continuation"] == "approximate"
        answer = Answer()
        answer.take(json.loads(await response.read()))
        (record,) = await cluster.records(request.id)
        assert (record.method, record.broken) == ("failover", SEED)
        check_approximate(answer, [token.id for token in EXACT], record)
        assert await counted(cluster) == {"seed": 1}
        # A whole answer that is exact has no such header.
        async with cluster.session.post(url, json={**GREEDY, "max_tokens": 5}) as plain:
            assert "x-godwit-continuation" not in plain.headers
            assert "godwit" not in await plain.json()
