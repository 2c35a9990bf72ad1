"""A server in this process whose answers a test holds up, breaks and counts; its model is the fake's."""

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence

from godwit.engines.fake import FakeOptions, FakeRunner, fake_info
from godwit.engines.runner import Span
from godwit.engines.server import Drawn, Seat
from godwit.errors import EngineError
from godwit.ports import SequenceSpec
from godwit.types import ChatMessage, ModelName, Token, TokenId
from tests.patience import DEADLINE_S


class Gate:
    """Where coroutines of another thread wait while it is shut."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.num_arrived = 0

    async def passing(self) -> None:
        with self._changed:
            self.num_arrived += 1
            self._changed.notify_all()
            if self._is_open:
                return
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiting.append((loop, future))
        await future

    def shut(self) -> None:
        self._is_open = False

    def open(self) -> None:
        """Let all pass from now on."""
        with self._changed:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_pass, future)

    def wait_for(self, num_arrived: int) -> None:
        """Wait until so many have come here since the start."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_arrived >= num_arrived, DEADLINE_S)


def _pass(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class ScriptedServer:
    """Implements `served.Server` and its KvShipping.

    `gates` are by what is asked: prefill, draw (before each token), cleanup (where a draw is closed),
    export_kv, import_kv, progress. `errors` are raised in turn, after the gate. `calls` are the slots and
    token counts asked for, `num_computed` is its progress. Each, and each token, takes `answer_s`.
    """

    layout = "scripted"
    bytes_per_token = 8

    def __init__(
        self,
        *,
        slots: int = 2,
        context_tokens: int = 200,
        block_tokens: int = 1,
        burst: int = 1,
        eos_after: int | None = None,
        answer_s: float = 0.0,
    ) -> None:
        self.slots = slots
        self.block_tokens = block_tokens
        self.is_up = True
        self.is_closed = False
        self.gates: dict[str, Gate] = defaultdict(Gate)
        self.errors: dict[str, deque[BaseException]] = defaultdict(deque)
        self.calls: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.num_computed = 0
        self.ending: str | None = "stop"
        self._burst = burst
        self._answer_s = answer_s
        self._options = FakeOptions(eos_after=eos_after)
        name = ModelName("scripted")
        self.info = fake_info(name, slots, context_tokens, self._options, is_loaded=True)
        self._texts = self._runner()

    def _runner(self) -> FakeRunner:
        return FakeRunner(self.info, 1, self._options)

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        assert not self.is_closed, "the model is gone"
        return self._texts.tokenize(text, add_special=add_special)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return self._texts.render(messages)

    def piece(self, token: TokenId) -> bytes:
        return self._texts.piece(token)

    def check(self, sequence: SequenceSpec) -> None:
        self._texts.check(sequence)

    async def _asked(self, what: str) -> None:
        await self.gates[what].passing()
        await asyncio.sleep(self._answer_s)
        if self.errors[what]:
            raise self.errors[what].popleft()

    async def prefill(self, seat: Seat, ids: Sequence[TokenId]) -> None:
        self.calls["prefill"].append((seat.slot, len(ids)))
        await self._asked("prefill")
        if len(ids) >= self.info.context_tokens:
            raise EngineError("there is no room for a token more")

    async def draw(self, seat: Seat, sequence: SequenceSpec) -> AsyncGenerator[Drawn, None]:
        ids = [*sequence.prompt_ids, *sequence.output_ids]
        self.calls["draw"].append((seat.slot, len(ids)))
        runner = self._runner()
        runner.open(0, sequence)
        runner.forward([Span(0, 0, ids, keep_logits=True)])
        drawn: list[Token] = []
        num_left = sequence.sampling.max_tokens - len(sequence.output_ids)
        try:
            while num_left:
                await self._asked("draw")
                token = runner.draw(0)
                if token is None:
                    yield Drawn(drawn, self.ending)
                    return
                runner.forward([Span(0, len(ids), [token.id], keep_logits=True)])
                ids.append(token.id)
                drawn.append(token)
                num_left -= 1
                if len(drawn) == self._burst:
                    yield Drawn(drawn)
                    drawn = []
            yield Drawn(drawn, "length")
        finally:
            await self.gates["cleanup"].passing()

    async def is_alive(self) -> bool:
        return self.is_up

    async def progress(self) -> object:
        self.calls["progress"].append((0, self.num_computed))
        await self._asked("progress")
        return self.num_computed

    async def close(self) -> None:
        self.is_closed = True

    async def export_kv(self, seat: Seat, ids: Sequence[TokenId]) -> bytearray:
        self.calls["export_kv"].append((seat.slot, len(ids)))
        await self._asked("export_kv")
        return packed(ids)

    async def import_kv(self, seat: Seat, ids: Sequence[TokenId], data: bytearray) -> None:
        self.calls["import_kv"].append((seat.slot, len(ids)))
        await self._asked("import_kv")
        if data != packed(ids):
            raise EngineError("this is the KV of other tokens")


def packed(ids: Sequence[TokenId]) -> bytearray:
    """The KV of these ids."""
    return bytearray(",".join(map(str, ids)).encode())
