"""Requests that move between two vLLM servers while they stream, by tokens and by KV; and one that dies."""

import os
import signal
from typing import Any

import pytest

from godwit.engines.vllm import VllmServer
from tests.cluster.harness import Cluster
from tests.vllm.conftest import MODEL

pytestmark = pytest.mark.anyio

WORDS = "The godwit is a bird that flies very far without a rest. "
CUTS = tuple(range(3, 33, 3))


def body(number: int) -> dict[str, Any]:
    """A chat request, of somewhat more than a hundred tokens."""
    question = f"{WORDS * 6} Question {number}: what is said here about the bird? Answer at length."
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 64,
        "temperature": 0,
        "ignore_eos": True,
    }


@pytest.mark.parametrize("method", ["tokens", "kv"])
@pytest.mark.parametrize("cut", CUTS)
async def test_a_moved_answer_is_the_unmoved_one(cluster: Cluster, method: str, cut: int) -> None:
    asked = body(cut if method == "kv" else 100 + cut)
    stream = await cluster.started(asked, cut)
    request = await cluster.find(stream.request)
    destination = "w2" if request.worker == "w1" else "w1"
    record = await cluster.move(request.id, destination, method=method)
    assert (record.outcome, record.method) == ("done", method), (record.reason, record.kv_problem)
    answer = await stream.end()
    unmoved = await cluster.answer(asked)
    assert (answer.error, answer.only.ids, answer.only.text) == (None, unmoved.only.ids, unmoved.only.text)
    assert cut <= (record.num_output or 0) < len(answer.only.ids)


async def test_the_stream_goes_on_when_its_server_is_killed(
    cluster: Cluster, servers: list[VllmServer]
) -> None:
    """Last in this file: one server is gone then."""
    asked = body(999)
    unmoved = await cluster.answer(asked)
    stream = await cluster.started(asked, 10)
    request = await cluster.find(stream.request)
    serving = servers[0] if request.worker == "w1" else servers[1]
    assert serving.pid is not None
    os.kill(serving.pid, signal.SIGKILL)
    answer = await stream.end()
    assert (answer.error, answer.only.ids, answer.only.finish_reason) == (None, unmoved.only.ids, "length")
