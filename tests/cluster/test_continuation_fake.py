"""Exact continuation on the deterministic engine: a moved answer equals the unmoved one in everything."""

import asyncio
from typing import Any

import pytest

from godwit.bench.expected import fake_answer, text_of
from godwit.engines.fake import FakeOptions
from godwit.types import Sampling
from tests.cluster.harness import Cluster
from tests.cluster.streams import Answer, Stream

pytestmark = pytest.mark.anyio

PROMPT = "The bar-tailed godwit flies from Alaska to New Zealand."
GREEDY = {"model": "fake", "prompt": PROMPT, "temperature": 0}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": PROMPT}]}
# Longer than any move takes, so that handovers fall inside of what a stop string withholds.
WHOLE = text_of(fake_answer(PROMPT, Sampling(0, 160, temperature=0))[0])
FIRST, LAST = 100, 900
# Tokens that are the first bytes of a character, in the fake engine's vocabulary.
LEAD_IDS = (0xC3, 256)

ENDS = FakeOptions(eos_probability=0.03)
ENDING = next(
    prompt
    for prompt in map(str, range(1000))
    if 100 <= len(fake_answer(prompt, Sampling(0, 300, temperature=0), ENDS)[0]) <= 200
)

ROWS: dict[str, dict[str, Any]] = {
    "max_tokens": {**GREEDY, "max_tokens": 120},
    "min_tokens": {**GREEDY, "model": "ends", "min_tokens": 90, "max_tokens": 300},
    "end of sequence": {**GREEDY, "model": "ends", "prompt": ENDING, "max_tokens": 300},
    "stop string": {**GREEDY, "max_tokens": 160, "stop": ["\0", WHOLE[FIRST:LAST]]},
    "almost a stop string": {**GREEDY, "max_tokens": 160, "stop": WHOLE[FIRST:LAST] + "\0"},
    "seed": {**GREEDY, "max_tokens": 120, "temperature": 0.8, "seed": 7},
    "penalties": {**GREEDY, "max_tokens": 120, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "n": {**GREEDY, "max_tokens": 120, "temperature": 1, "seed": -3, "n": 2},
    "logprobs": {**GREEDY, "max_tokens": 120, "logprobs": 3},
    "echo": {**GREEDY, "max_tokens": 120, "echo": True},
    "ids as prompt": {**GREEDY, "prompt": list(PROMPT.encode()), "max_tokens": 120},
    "not streamed": {**GREEDY, "max_tokens": 160, "stream": False},
    "chat": {**CHAT, "max_tokens": 120, "temperature": 0.5, "seed": 1},
    "chat with logprobs": {**CHAT, "max_tokens": 120, "logprobs": True, "top_logprobs": 2, "seed": 2},
}
CUTS = (2, 30, 60)


@pytest.fixture(scope="module")
async def unmoved(fake_cluster: Cluster) -> dict[str, Answer]:
    """Every row's answer when nothing happens to it."""
    answers = await asyncio.gather(*(fake_cluster.answer(body) for body in ROWS.values()))
    return dict(zip(ROWS, answers, strict=True))


async def ids_of(cluster: Cluster, stream: Stream, num_choices: int) -> list[str]:
    """The ids of a stream's requests, also where the answer has not begun."""
    status = await cluster.wait_for(lambda status: len(status.requests) >= num_choices)
    return [one.id for one in status.requests if one.id.startswith(stream.request)]


async def move_at(cluster: Cluster, request: str, cut: int, *, live: bool) -> bool:
    """Move one request to the other worker once it has so many tokens; False where it ended before."""
    status = await cluster.wait_for(
        lambda status: all(one.num_output >= cut for one in status.requests if one.id == request)
    )
    source = next((one.worker for one in status.requests if one.id == request), None)
    if source is None:
        return False
    record = await cluster.move(request, "w2" if source == "w1" else "w1", live=live)
    return record.outcome == "done" and record.num_output >= cut


@pytest.mark.parametrize("live", [True, False], ids=["live", "stop and recompute"])
@pytest.mark.parametrize("row", ROWS)
async def test_moved(fake_cluster: Cluster, unmoved: dict[str, Answer], row: str, live: bool) -> None:
    """The request goes to the other worker and back, several times."""
    await fake_cluster.is_idle()
    stream = fake_cluster.open(ROWS[row])
    requests = await ids_of(fake_cluster, stream, ROWS[row].get("n", 1))
    for cut in CUTS:
        assert all([await move_at(fake_cluster, request, cut, live=live) for request in requests])
    assert await stream.end() == unmoved[row]


async def test_failed_over(fake_cluster: Cluster, unmoved: dict[str, Answer]) -> None:
    """Every row at once on one worker, which is killed; the cluster has no worker at all for a while."""
    await fake_cluster.is_idle()
    await fake_cluster.kill("w2")
    await fake_cluster.wait_for(lambda status: len(status.workers) == 1)
    streams = {row: fake_cluster.open(body) for row, body in ROWS.items()}
    num_requests = len(ROWS) + 1  # n = 2 is two requests
    await fake_cluster.wait_for(
        lambda status: len([one for one in status.requests if one.num_output >= 5]) == num_requests
    )
    await fake_cluster.kill("w1")
    await asyncio.gather(fake_cluster.restart("w1"), fake_cluster.restart("w2"))
    for row, stream in streams.items():
        assert await stream.end() == unmoved[row], row
    failovers = [one for one in (await fake_cluster.state()).moves if one.method == "failover"]
    assert len({one.request for one in failovers}) == num_requests
    await fake_cluster.has_all_slots()


async def test_a_character_over_the_boundary(fake_cluster: Cluster) -> None:
    """The request moves until it has done so between two tokens that make one character."""
    await fake_cluster.is_idle()
    body = {**GREEDY, "max_tokens": 3500, "prompt": "A character"}
    output, _ = fake_answer("A character", Sampling(0, 3500, temperature=0))
    stream = await fake_cluster.started(body, 2)
    while True:
        source = (await fake_cluster.find(stream.request)).worker
        record = await fake_cluster.move(stream.request, "w2" if source == "w1" else "w1")
        assert record.outcome == "done"
        if output[record.num_output - 1].id in LEAD_IDS:
            break
    await stream.has(record.num_output + 10)
    seen = stream.answer.only
    assert seen.ids == [token.id for token in output[: len(seen.ids)]]
    assert seen.text == text_of(output[: len(seen.ids)])
    await stream.leave()


def test_the_rows_show_what_they_are_about(unmoved: dict[str, Answer]) -> None:
    """An answer that ends before it has moved, or that has no stop string, would prove nothing."""
    ends = unmoved["min_tokens"].only
    assert (len(ends.ids) >= 90, ends.finish_reason) == (True, "stop")
    assert unmoved["end of sequence"].only.finish_reason == "stop"
    assert unmoved["stop string"].only.text == WHOLE[:FIRST]
    assert unmoved["stop string"].only.finish_reason == "stop"
    assert unmoved["almost a stop string"].only.text == WHOLE
    assert unmoved["n"].choices[0].ids != unmoved["n"].choices[1].ids
    assert len(unmoved["logprobs"].only.logprobs) == 120
    assert len(unmoved["chat with logprobs"].only.logprobs) == 120
    assert unmoved["echo"].only.text.startswith(PROMPT)
    for row, answer in unmoved.items():
        assert answer.usage is not None
        if row not in ("n", "stop string"):
            assert answer.usage["completion_tokens"] == len(answer.only.ids)
