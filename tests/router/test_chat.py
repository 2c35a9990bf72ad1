"""Chat completions with the official client, streamed and not."""

import asyncio
import json
from typing import Any

import aiohttp
import openai
from openai.types.chat import ChatCompletionChunk

from godwit.types import Alternative, Token
from tests.router.scripted import (
    PROMPT_TOKENS,
    Served,
    run,
    served,
    text_of,
    tokens_of,
    with_logprobs,
)


async def ask(at: Served, **fields: Any) -> openai.types.chat.ChatCompletion:
    async with at.client() as client:
        answer = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "Hi"}], **fields
        )
    assert isinstance(answer, openai.types.chat.ChatCompletion)
    return answer


async def ask_streamed(at: Served, **fields: Any) -> list[ChatCompletionChunk]:
    async with at.client() as client:
        stream = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "Hi"}], stream=True, **fields
        )
        return [chunk async for chunk in stream]


def text_from(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def reasons(chunks: list[ChatCompletionChunk]) -> dict[int, str]:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {choice.index: choice.finish_reason for choice in choices if choice.finish_reason}


def test_an_answer() -> None:
    async def main() -> None:
        async with served() as at:
            answer = await ask(at)
            assert answer.id == "chatcmpl-r0"
            assert answer.object == "chat.completion"
            assert answer.created == 1_700_000_000
            assert answer.model == "fake"
            assert answer.choices[0].message.role == "assistant"
            assert answer.choices[0].message.content == "Hello, world"
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == PROMPT_TOKENS
            assert answer.usage.completion_tokens == 3
            assert answer.usage.total_tokens == PROMPT_TOKENS + 3
            started = at.generations.started[0]
            assert (started.request, started.model) == ("r0", "fake")
            assert text_of(started.prompt) == [("user", "Hi")]
            assert started.sampling.seed == 1234
            assert at.generations.cancelled == []

    run(main())


def test_a_streamed_answer() -> None:
    async def main() -> None:
        async with served() as at:
            chunks = await ask_streamed(at)
            assert chunks[0].choices[0].delta.role == "assistant"
            assert {chunk.id for chunk in chunks} == {"chatcmpl-r0"}
            assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
            assert text_from(chunks) == "Hello, world"
            assert reasons(chunks) == {0: "stop"}
            assert all(chunk.usage is None for chunk in chunks)

    run(main())


def test_the_synchronous_client_reads_both() -> None:
    def talk(url: str) -> tuple[str | None, str]:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            answer = client.chat.completions.create(model="fake", messages=messages)
            chunks = list(client.chat.completions.create(model="fake", messages=messages, stream=True))
        return answer.choices[0].message.content, text_from(chunks)

    async def main() -> None:
        async with served() as at:
            assert await asyncio.to_thread(talk, at.url) == ("Hello, world", "Hello, world")

    run(main())


def test_usage_comes_last_where_asked_for() -> None:
    async def main() -> None:
        async with served() as at:
            chunks = await ask_streamed(at, stream_options={"include_usage": True}, n=2)
            assert chunks[-1].choices == []
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.prompt_tokens == PROMPT_TOKENS
            assert chunks[-1].usage.completion_tokens == 6

    run(main())


def test_each_of_n_choices_is_a_request_of_its_own() -> None:
    async def main() -> None:
        async with served() as at:
            answer = await ask(at, n=2, seed=5)
            assert [c.message.content for c in answer.choices] == ["Hello, world"] * 2
            assert [c.index for c in answer.choices] == [0, 1]
            assert [(s.request, s.sampling.seed) for s in at.generations.started] == [
                ("r0-0", 5),
                ("r0-1", 6),
            ]
            chunks = await ask_streamed(at, n=2)
            assert [text_from(chunks, index) for index in (0, 1)] == ["Hello, world"] * 2
            assert reasons(chunks) == {0: "stop", 1: "stop"}

    run(main())


def test_max_tokens_ends_with_length() -> None:
    async def main() -> None:
        async with served() as at:
            answer = await ask(at, max_tokens=2)
            assert answer.choices[0].message.content == "Hello,"
            assert answer.choices[0].finish_reason == "length"
            assert reasons(await ask_streamed(at, max_completion_tokens=2)) == {0: "length"}

    run(main())


def test_a_stop_string_across_tokens_cuts_the_text_and_cancels() -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.output = tokens_of(b"one ", b"EN", b"D two", b" three")
            answer = await ask(at, stop="END")
            assert answer.choices[0].message.content == "one "
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 3
            assert at.generations.cancelled == ["r0"]
            chunks = await ask_streamed(at, stop=["none", "END"])
            assert text_from(chunks) == "one "
            assert reasons(chunks) == {0: "stop"}
            assert at.generations.cancelled == ["r0", "r1"]

    run(main())


def test_withheld_text_is_released_at_the_end() -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.output = tokens_of(b"one ", b"EN")
            assert text_from(await ask_streamed(at, stop="END")) == "one EN"
            assert (await ask(at, stop="END")).choices[0].message.content == "one EN"

    run(main())


def test_characters_split_over_tokens_and_text_that_json_must_escape() -> None:
    async def main() -> None:
        async with served() as at:
            bird = "🐦".encode()
            at.generations.output = tokens_of(b'"\\\n\x00', bird[:2], bird[2:], b"\xe2")
            assert text_from(await ask_streamed(at)) == '"\\\n\x00🐦\ufffd'

    run(main())


def test_logprobs_streamed_and_not() -> None:
    async def main() -> None:
        async with served() as at:
            other = Alternative(9, b" you", -1.5)
            unlikely = Alternative(8, b"\xf0", float("-inf"))
            at.generations.output = [
                with_logprobs(Token(1, b"Hello"), other, unlikely),
                with_logprobs(Token(2, b"\xe2"), other, logprob=-3.0),
            ]
            answer = await ask(at, logprobs=True, top_logprobs=2)
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            assert logprobs.content is not None
            first, second = logprobs.content
            assert (first.token, first.logprob, first.bytes) == ("Hello", -0.5, list(b"Hello"))
            assert [(t.token, t.logprob) for t in first.top_logprobs] == [("Hello", -0.5), (" you", -1.5)]
            assert (second.token, second.logprob, second.bytes) == ("\ufffd", -3.0, [0xE2])
            assert [t.token for t in second.top_logprobs] == [" you", "\ufffd"]
            assert at.generations.started[0].sampling.num_logprobs == 2
            chunks = await ask_streamed(at, logprobs=True, top_logprobs=2)
            streamed = [
                entry
                for chunk in chunks
                if (found := chunk.choices[0].logprobs) is not None
                for entry in found.content or []
            ]
            assert streamed == logprobs.content

    run(main())


def test_logprobs_without_alternatives() -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.output = [with_logprobs(Token(1, b"Hi"), logprob=float("-inf"))]
            answer = await ask(at, logprobs=True)
            assert answer.choices[0].logprobs is not None
            assert answer.choices[0].logprobs.content is not None
            assert answer.choices[0].logprobs.content[0].logprob == -9999.0
            assert answer.choices[0].logprobs.content[0].top_logprobs == []

    run(main())


def test_token_ids_are_complete_with_a_stop_string() -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.output = tokens_of(b"one", b" E", b"ND", b"x")
            extra = {"return_token_ids": True}
            answer = await ask(at, stop="END", extra_body=extra)
            assert answer.choices[0].model_extra == {"token_ids": [0, 1, 2]}
            chunks = await ask_streamed(at, stop="END", extra_body=extra)
            ids = [i for c in chunks for i in (c.choices[0].model_extra or {})["token_ids"]]
            assert ids == [0, 1, 2]

    run(main())


def test_the_events_are_framed_as_servers_do_and_the_connection_is_reused() -> None:
    async def main() -> None:
        reused = 0

        async def count(*_: object) -> None:
            nonlocal reused
            reused += 1

        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(count)
        async with served() as at, aiohttp.ClientSession(trace_configs=[trace]) as session:
            body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
            for number in range(2):
                async with session.post(f"{at.url}/v1/chat/completions", json=body) as response:
                    assert response.status == 200
                    assert response.headers["content-type"] == "text/event-stream"
                    assert response.headers["x-request-id"] == f"r{number}"
                    events = (await response.read()).decode().split("\n\n")
                assert events[-2:] == ["data: [DONE]", ""]
                for event in events[:-2]:
                    assert json.loads(event.removeprefix("data: "))["model"] == "fake"
            assert reused == 1

    run(main())


def test_a_client_of_http_1_0_gets_the_stream_unchunked() -> None:
    async def main() -> None:
        async with served() as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
            body = b'{"model":"fake","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
            writer.write(
                b"POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
            assert b"chunked" not in head
            assert rest.startswith(b"data: {")
            assert rest.endswith(b"data: [DONE]\n\n")
            writer.close()

    run(main())
