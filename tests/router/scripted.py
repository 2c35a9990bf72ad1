"""A request table that plays a script, and the real HTTP application in front of it on loopback."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import uvloop
from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry

from godwit.errors import GodwitError
from godwit.ports import Sink
from godwit.router.app import make_app, make_runner
from godwit.router.metrics import RouterMetrics
from godwit.router.settings import RouterSettings
from godwit.types import (
    Alternative,
    ChatPrompt,
    ModelInfo,
    ModelName,
    Prompt,
    RequestId,
    Sampling,
    TextPrompt,
    Token,
    TokenPrompt,
)

PATIENCE_S = 20.0
PROMPT_TOKENS = 7


class Started(Struct, frozen=True):
    """What the application asked for."""

    request: RequestId
    model: ModelName
    prompt: Prompt
    sampling: Sampling
    sink: Sink
    expected_tokens: int | None = None
    has_seed: bool = True


def tokens_of(*texts: bytes) -> list[Token]:
    """One token for each text, with ids from 0."""
    return [Token(i, text) for i, text in enumerate(texts)]


def with_logprobs(token: Token, *others: Alternative, logprob: float = -0.5) -> Token:
    """The token with itself and others as alternatives."""
    return Token(token.id, token.text, (Alternative(token.id, token.text, logprob), *others))


class ScriptedGenerations:
    """Gives every request the same output, one token a frame; or none, and the test drives the sinks."""

    def __init__(self) -> None:
        self.output: list[Token] = tokens_of(b"Hello", b",", b" world")
        self.reason = "stop"
        self.is_manual = False
        self.refusal: GodwitError | None = None
        self.refuses_from = 0
        self.started: list[Started] = []
        self.cancelled: list[RequestId] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        request: RequestId,
        model: ModelName,
        prompt: Prompt,
        sampling: Sampling,
        sink: Sink,
        expected_tokens: int | None = None,
        *,
        has_seed: bool = True,
    ) -> None:
        """See `Generations`."""
        if self.refusal is not None and len(self.started) >= self.refuses_from:
            raise self.refusal
        started = Started(request, model, prompt, sampling, sink, expected_tokens, has_seed)
        self.started.append(started)
        self._spawn(self._wake())
        if not self.is_manual:
            self._spawn(self._play(started))

    def cancel(self, request: RequestId) -> None:
        """See `Generations`."""
        self.cancelled.append(request)
        self._spawn(self._wake())

    def models(self) -> Sequence[ModelInfo]:
        """See `Generations`."""
        return [ModelInfo(ModelName("fake"), "digest", 4096, 1, True, True)]

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until starts and cancels make `predicate` true."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(predicate)

    async def accept_all(self, count: int) -> None:
        """Wait for `count` requests and accept them, as a worker with free slots would."""
        await self.until(lambda: len(self.started) == count)
        for started in self.started:
            started.sink.accepted(list(range(PROMPT_TOKENS)))

    async def _play(self, started: Started) -> None:
        sink = started.sink
        sink.accepted(list(range(PROMPT_TOKENS)))
        for index, token in enumerate(self.output[: started.sampling.max_tokens]):
            await asyncio.sleep(0)
            if started.request in self.cancelled:
                return
            sink.tokens(index, [token.id], [token.text], [token.alternatives])
            sink.flush()
        if started.request not in self.cancelled:
            sink.finished("length" if len(self.output) > started.sampling.max_tokens else self.reason)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Served(Struct, frozen=True):
    """The application as clients reach it."""

    generations: ScriptedGenerations
    metrics: RouterMetrics
    port: int

    @property
    def url(self) -> str:
        """Where the application is."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "any") -> openai.AsyncOpenAI:
        """The official client; it must not hide refusals by trying again."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)


@asynccontextmanager
async def served(settings: RouterSettings | None = None, *, is_ready: bool = True) -> AsyncIterator[Served]:
    """Serve the application on a free port of loopback."""
    settings = settings or RouterSettings(shutdown_timeout_s=0.1)
    generations = ScriptedGenerations()
    metrics = RouterMetrics(CollectorRegistry())
    numbers = itertools.count()
    app = make_app(
        generations,
        settings=settings,
        metrics=metrics,
        new_id=lambda: f"r{next(numbers)}",
        new_seed=lambda: 1234,
        now=time.monotonic,
        is_ready=lambda: is_ready,
        wall_now=lambda: 1_700_000_000.0,
    )
    runner = make_runner(app, settings)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Served(generations, metrics, runner.addresses[0][1])
    finally:
        await runner.cleanup()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine on the loop that Godwit runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


def text_of(prompt: Prompt) -> object:
    """The content of a prompt, for comparing."""
    match prompt:
        case TextPrompt(text=text):
            return text
        case TokenPrompt(ids=ids):
            return ids
        case ChatPrompt(messages=messages):
            return [(m.role, m.content) for m in messages]
