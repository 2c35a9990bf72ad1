"""What clients are told of a continuation that could not be exact: at the end, and only then."""

import asyncio
from typing import Any

import pytest

from godwit.types import Promise
from tests.router.scripted import Served, Started, run, served
from tests.router.test_app import CHAT, post
from tests.router.test_chat import ask_streamed

SEED, PENALTIES = Promise.SEED, Promise.PENALTIES


def _plays(started: Started, *broken: tuple[Promise, ...]) -> None:
    """A token, another after each continuation, and the end."""
    sink = started.sink
    sink.tokens(0, [1], [b"a"], [])
    sink.flush()
    for index, promises in enumerate(broken, start=1):
        sink.approximate(promises)
        sink.tokens(index, [1], [b"b"], [])
        sink.flush()
    sink.finished("stop")


async def _choices(at: Served, count: int) -> list[Started]:
    at.generations.is_manual = True
    await at.generations.accept_all(count)
    return at.generations.started


def test_a_stream_says_so_in_the_last_chunk_of_that_choice() -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.is_manual = True
            asking = asyncio.create_task(ask_streamed(at, n=2, stream_options={"include_usage": True}))
            exact, approximate = await _choices(at, 2)
            _plays(exact)
            _plays(approximate, (SEED,), (SEED, PENALTIES))
            told: dict[tuple[int, str | None], Any] = {}
            for chunk in await asking:
                extra = (chunk.model_extra or {}).get("godwit")
                for choice in chunk.choices:
                    told[choice.index, choice.finish_reason] = extra
                assert chunk.choices or extra is None
            assert told == {
                (0, None): None,
                (0, "stop"): None,
                (1, None): None,
                (1, "stop"): {"continuation": "approximate", "broken": ["seed", "penalties"]},
            }

    run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_whole_answer_says_so_in_a_header_and_in_its_body(path: str) -> None:
    async def main() -> None:
        async with served() as at:
            at.generations.is_manual = True
            body = CHAT if "chat" in path else {"model": "fake", "prompt": "Hi"}
            asking = asyncio.create_task(post(at, {**body, "n": 2}, path))
            one, other = await _choices(at, 2)
            _plays(one, (SEED,))
            _plays(other, (PENALTIES,))
            reply = await asking
            assert reply.headers["x-godwit-continuation"] == "approximate"
            assert reply.json["godwit"] == {"continuation": "approximate", "broken": ["penalties", "seed"]}

    run(main())


def test_an_exact_answer_says_nothing() -> None:
    async def main() -> None:
        async with served() as at:
            reply = await post(at, CHAT)
            assert "x-godwit-continuation" not in reply.headers
            assert "godwit" not in reply.json

    run(main())
