"""The official `openai` package as the client of a real cluster, and clients that leave."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from godwit.config import WorkerSettings
from tests.cluster.harness import Cluster, fake, settings

pytestmark = pytest.mark.anyio

MODEL = "smollm2-135m"
MESSAGES: Any = [{"role": "user", "content": "What is a godwit?"}]


@pytest.fixture(scope="module")
async def client(real_cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    """As a user would make it."""
    async with openai.AsyncOpenAI(base_url=f"{real_cluster.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_chat(client: openai.AsyncOpenAI) -> None:
    """Whole and streamed, the answers are the same."""
    whole = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=20, temperature=0
    )
    assert whole.object == "chat.completion"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=20,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 20
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


async def test_completions(client: openai.AsyncOpenAI) -> None:
    """Text completions, whole and streamed, with logprobs."""
    asked: dict[str, Any] = {"model": MODEL, "prompt": "The godwit is", "max_tokens": 12, "temperature": 0}
    whole = await client.completions.create(**asked, logprobs=2)
    assert whole.choices[0].logprobs is not None
    assert "".join(whole.choices[0].logprobs.tokens or []) == whole.choices[0].text
    chunks = [chunk async for chunk in await client.completions.create(**asked, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


async def test_models(client: openai.AsyncOpenAI) -> None:
    """The list has each model once, however many workers have it."""
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_errors(client: openai.AsyncOpenAI) -> None:
    """Each kind of wrong request gets the package's own exception, which says what is wrong."""
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        await client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="loudness") as caught:
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"loudness": 11})
    assert caught.value.param == "loudness"
    with pytest.raises(openai.BadRequestError, match="tools"):
        await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}],
        )
    with pytest.raises(openai.BadRequestError, match="context"):
        await client.completions.create(model=MODEL, prompt="far " * 1100)


async def test_leaves(client: openai.AsyncOpenAI, real_cluster: Cluster) -> None:
    """A client that leaves frees its slot at once, though it asked for a thousand tokens."""
    await real_cluster.is_idle()
    for _ in range(2):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_completion_tokens=900,
            extra_body={"ignore_eos": True},
            stream=True,
        )
        await anext(aiter(stream))
        assert len((await real_cluster.state()).requests) == 1
        await stream.close()
        await real_cluster.is_idle()
    await real_cluster.has_all_slots(MODEL)


async def test_leaves_right_after_a_move(client: openai.AsyncOpenAI, real_cluster: Cluster) -> None:
    """The slot that is freed is the new owner's, and the former owner has none left either."""
    await real_cluster.is_idle()
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=900,
        extra_body={"ignore_eos": True},
        stream=True,
    )
    await anext(aiter(stream))
    (running,) = (await real_cluster.state()).requests
    record = await real_cluster.move(running.id, "w2" if running.worker == "w1" else "w1")
    assert record.outcome == "done"
    await stream.close()
    await real_cluster.is_idle()
    await real_cluster.has_all_slots(MODEL)


async def test_whole_answer_leaves() -> None:
    """A client that waits for a whole answer and leaves frees its slots too, all choices of it."""
    async with Cluster(settings(fake(decode_s=0.01), worker=WorkerSettings(slots=2)), 1) as cluster:
        body = {"model": "fake", "prompt": "x", "max_tokens": 3000, "n": 2, "stream": False}
        waiting = cluster.open(body)
        await cluster.wait_for(
            lambda status: all(one.num_output > 3 for one in status.requests) and len(status.requests) == 2
        )
        await waiting.leave()
        await cluster.has_all_slots()
