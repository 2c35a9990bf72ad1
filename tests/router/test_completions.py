"""Text completions with the official client, streamed and not."""

from typing import Any

from openai.types import Completion

from godwit.types import Alternative, Token
from tests.router.scripted import PROMPT_TOKENS, Served, run, served, text_of, tokens_of, with_logprobs


async def ask(at: Served, prompt: Any = "Once", **fields: Any) -> Completion:
    async with at.client() as client:
        answer = await client.completions.create(model="fake", prompt=prompt, **fields)
    assert isinstance(answer, Completion)
    return answer


async def ask_streamed(at: Served, prompt: Any = "Once", **fields: Any) -> list[Completion]:
    async with at.client() as client:
        stream = await client.completions.create(model="fake", prompt=prompt, stream=True, **fields)
        return [chunk async for chunk in stream]


def text_from(chunks: list[Completion], index: int = 0) -> str:
    return "".join(c.text for chunk in chunks for c in chunk.choices if c.index == index)


def test_an_answer() -> None:
    async def main() -> None:
        async with served() as at:
            answer = await ask(at)
            assert answer.id == "cmpl-r0"
            assert answer.object == "text_completion"
            assert answer.choices[0].text == "Hello, world"
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, 3)
            assert text_of(at.generations.started[0].prompt) == "Once"

    run(main())


def test_a_streamed_answer() -> None:
    async def main() -> None:
        async with served() as at:
            chunks = await ask_streamed(at, stream_options={"include_usage": True})
            assert text_from(chunks) == "Hello, world"
            assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "stop"
            assert {chunk.object for chunk in chunks} == {"text_completion"}
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.total_tokens == PROMPT_TOKENS + 3

    run(main())


def test_several_prompts_are_several_choices_and_their_tokens_add_up() -> None:
    async def main() -> None:
        async with served() as at:
            answer = await ask(at, [[1, 2], [3]], n=2)
            assert [c.index for c in answer.choices] == [0, 1, 2, 3]
            assert [text_of(s.prompt) for s in at.generations.started] == [(1, 2), (1, 2), (3,), (3,)]
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2 * PROMPT_TOKENS, 12)

    run(main())


def test_echo_shows_the_prompt_first_and_does_not_count_it() -> None:
    async def main() -> None:
        async with served() as at:
            answer = await ask(at, ["Once", "Twice"], echo=True, stop=",")
            assert [c.text for c in answer.choices] == ["OnceHello", "TwiceHello"]
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 4
            chunks = await ask_streamed(at, ["Once", "Twice"], echo=True)
            assert [text_from(chunks, i) for i in (0, 1)] == ["OnceHello, world", "TwiceHello, world"]

    run(main())


def test_logprobs_streamed_and_not() -> None:
    async def main() -> None:
        async with served() as at:
            others = (Alternative(8, b"A", -0.1), Alternative(9, b"\xf0\x9f", -0.2))
            at.generations.output = [
                with_logprobs(Token(1, b"Hel"), *others),
                with_logprobs(Token(2, b"lo"), *others, logprob=-0.05),
                with_logprobs(Token(3, b"\xe2\x82"), *others),
                with_logprobs(Token(4, b"\xac."), *others),
            ]
            answer = await ask(at, logprobs=2)
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            assert logprobs.tokens == ["Hel", "lo", "bytes:\\xe2\\x82", "bytes:\\xac\\x2e"]
            assert logprobs.token_logprobs == [-0.5, -0.05, -0.5, -0.5]
            assert logprobs.text_offset == [0, 3, 5, 5]
            assert logprobs.top_logprobs is not None
            assert logprobs.top_logprobs[0] == {"A": -0.1, "bytes:\\xf0\\x9f": -0.2, "Hel": -0.5}
            assert logprobs.top_logprobs[1] == {"lo": -0.05, "A": -0.1}
            chunks = [c.choices[0] for c in await ask_streamed(at, logprobs=2)]
            streamed = [c.logprobs for c in chunks if c.logprobs is not None]
            assert [t for part in streamed for t in part.tokens or []] == logprobs.tokens
            assert [t for part in streamed for t in part.text_offset or []] == logprobs.text_offset

    run(main())


def test_token_ids() -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.output = tokens_of(b"a", b"\xe2", b"\x82\xac")
            extra = {"return_token_ids": True}
            answer = await ask(at, extra_body=extra)
            assert answer.choices[0].model_extra == {"token_ids": [0, 1, 2]}
            chunks = await ask_streamed(at, extra_body=extra)
            extras = [c.choices[0].model_extra for c in chunks]
            assert extras == [{"token_ids": [0]}, {"token_ids": [1, 2]}, {"token_ids": []}]

    run(main())
