"""The Engine contract of ports.py over a server that speaks HTTP, in a thread with an event loop of its own.

A held sequence is computed by asking the server for the KV of its tokens, so that they are in its cache; a
generating one is a request that streams. To stop, the connection is closed: what was not reported is dropped.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import aiohttp
import structlog

from godwit.engines.sequence import OpenRound, Phase
from godwit.engines.served_sequence import ServedSequence
from godwit.engines.server import KvShipping, Server
from godwit.engines.slots import SlotBook
from godwit.errors import EngineError, GodwitError, InvariantBrokenError
from godwit.ports import (
    Computed,
    EngineEvent,
    Failed,
    Held,
    KvExported,
    KvImported,
    OnStep,
    SequenceSpec,
)
from godwit.protocol.awaiting import AwaitedKv, Block
from godwit.types import (
    ChatMessage,
    KvOffer,
    KvRange,
    ModelInfo,
    RequestId,
    Round,
    Sampling,
    TokenId,
)

_log = structlog.get_logger(__name__)

START_WAIT_S = 0.002
"""A request that starts is told to generate at once: then its first pass is not asked for by itself."""
_USUAL_WEIGHT = 0.2  # of the newest token in the running mean that `pace` multiplies
_CLOSE_S = 30.0


class ServedEngine:
    """Serves up to `server.slots` sequences; each has at most one request under way at the server."""

    def __init__(
        self, server: Server, kv: KvShipping | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._kv = kv
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._slots = SlotBook(server.slots, server.info.name)
        self._is_closed = False
        # The loop's side.
        self._sequences: dict[RequestId, ServedSequence] = {}
        self._free = list(range(server.slots))
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_step: OnStep = lambda _: None
        self._num_steps = 0
        self._usual_s = 0.0

    @property
    def info(self) -> ModelInfo:
        return self._server.info

    @property
    def slots(self) -> int:
        return self._server.slots

    @property
    def kv_layout(self) -> str | None:
        return None if self._kv is None else self._kv.layout

    @property
    def ships_whole_kv(self) -> bool:
        return True

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def step_started_s(self) -> float | None:
        """Since when the server owes an answer; of several the one that it owes longest."""
        working = [s.asked_s for s in list(self._sequences.values()) if s.work is not None]
        return min(working, default=None)

    @property
    def free_slots(self) -> int:
        return self._slots.num_free

    def start(self, on_step: OnStep) -> None:
        """Start the thread; `on_step` is called in it."""
        self._on_step = on_step
        self._thread = threading.Thread(target=self._run, name=f"engine-{self.info.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop all requests and the server; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._slots.refuse("the engine is closed")
        if self._thread is None:
            self._loop.run_until_complete(self._stop())
            self._loop.close()
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        return self._server.tokenize(text, add_special=add_special)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return self._server.render(messages)

    def piece(self, token: TokenId) -> bytes:
        return self._server.piece(token)

    def try_out(self, sampling: Sampling) -> None:
        """The server itself refuses a grammar that it cannot follow, and that request alone fails."""

    def check(self, sequence: SequenceSpec) -> None:
        self._server.check(sequence)

    # Commands. Each is a closure that runs in the engine's loop.

    def open(self, request: RequestId, sequence: SequenceSpec, awaits: KvOffer | None = None) -> None:
        num_tokens = len(sequence.prompt_ids) + len(sequence.output_ids)
        if awaits is not None and not 0 <= awaits.kv.first < awaits.kv.last < num_tokens:
            raise InvariantBrokenError(f"{request} of {num_tokens} tokens cannot await {awaits.kv}")
        with self._slots.taking(request):
            self._call(lambda: self._do_open(request, sequence, awaits))

    def export_kv(self, request: RequestId, kv: KvRange) -> None:
        self._call(lambda: self._do_export(request, kv))

    def import_kv(self, request: RequestId, kv: KvRange, data: bytearray) -> None:
        self._with(request, lambda s: self._do_import(s, Block(kv, data)))

    def stop_awaiting(self, request: RequestId) -> None:
        self._with(request, self._do_stop_awaiting)

    def append(self, request: RequestId, ids: Sequence[TokenId]) -> None:
        self._with(request, lambda s: self._do_append(s, tuple(ids)))

    def generate(self, request: RequestId) -> None:
        self._with(request, self._do_generate)

    def hold(self, request: RequestId, at_output: int | None = None) -> None:
        self._with(request, lambda s: self._do_hold(s, at_output))

    def pace(self, request: RequestId, factor: float) -> None:
        self._with(request, lambda s: self._do_pace(s, factor))

    def release(self, request: RequestId) -> None:
        with self._slots.releasing(request) as has_slot:
            if has_slot:
                self._call(lambda: self._do_release(request))

    def _call(self, act: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    def _with(self, request: RequestId, act: Callable[[ServedSequence], None]) -> None:
        def do() -> None:
            state = self._sequences.get(request)
            if state is not None and state.phase is not Phase.ENDED:
                act(state)

        self._call(do)

    # The thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._stop())
        finally:
            self._loop.close()

    async def _stop(self) -> None:
        for state in list(self._sequences.values()):
            self._cancel(state)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        await self._server.close()

    def _emit(self, *events: EngineEvent) -> None:
        self._num_steps += 1
        self._on_step(events)

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _advance(self, state: ServedSequence) -> None:
        """Ask the server for what comes next, unless it is at work for this sequence."""
        is_over = state.phase is Phase.ENDED or state.request not in self._sequences
        if state.work is not None or is_over or self._is_closed:
            return
        if state.awaited is not None:
            block = state.awaited.take(state.num_computed)
            if block is None and not state.awaited.is_over:
                return
            doing = partial(self._take_kv, state, state.awaited, block)
        elif state.phase is Phase.GENERATING:
            doing = partial(self._draw, state)
        elif state.round is not None:
            doing = partial(self._compute, state)
        else:
            return
        state.asked_s = self._clock()
        state.work = self._spawn(self._work(state, doing))
        state.work.add_done_callback(lambda _: self._worked(state))

    async def _work(self, state: ServedSequence, doing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await doing()
        except GodwitError as error:
            self._fail(state, error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self._lost(state, str(error) or type(error).__name__)

    def _worked(self, state: ServedSequence) -> None:
        """Cancelled or not, it is over, and a command may have come meanwhile."""
        state.work = None
        self._advance(state)

    def _cancel(self, state: ServedSequence) -> None:
        if state.work is not None:
            state.work.cancel()

    async def _lost(self, state: ServedSequence, reason: str) -> None:
        """One request got no answer: is it this one alone, or is the server gone?"""
        if await self._server.is_alive():
            self._fail(state, EngineError(f"the server broke off: {reason}"))
            return
        state.phase = Phase.ENDED
        failure = f"the server of {self.info.name} is gone: {reason}"
        if self._slots.refuse(failure):
            _log.error("server gone", model=self.info.name, reason=reason)
            self._emit(Failed(None, failure, self.info.name))

    def _fail(self, state: ServedSequence, error: GodwitError) -> None:
        if state.request in self._sequences:
            state.phase = Phase.ENDED
            self._emit(Failed(state.request, error.message, code=error.code))

    # --- computing ------------------------------------------------------------------------------------------

    async def _compute(self, state: ServedSequence) -> None:
        await asyncio.sleep(START_WAIT_S)
        first, target, block = state.num_computed, len(state.tokens), self._server.block_tokens
        start_s = self._clock() if state.round is None else state.round.start_s
        # What is in no full block is not kept, so that it is left to `draw`.
        if target // block > first // block:
            await self._server.prefill(state.seat, state.tokens[: target // block * block])
        state.num_computed = target
        state.round = None if len(state.tokens) == target else OpenRound(target, target, self._clock())
        self._emit(Computed(state.request, target, target - first, self._clock() - start_s))

    async def _draw(self, state: ServedSequence) -> None:
        if (end := state.stop_due(self.info.context_tokens)) is not None:
            self._emit(end)
            return
        output = tuple(state.tokens[len(state.spec.prompt_ids) :])
        spec = SequenceSpec(state.spec.prompt_ids, output, state.spec.sampling)
        async with aclosing(self._server.draw(state.seat, spec)) as answer:
            async for drawn in answer:
                if events := state.take(drawn, self.info.context_tokens):
                    self._emit(*events)
                if state.phase is not Phase.GENERATING:
                    return
                now_s = self._clock()
                newest_s, state.asked_s = now_s - state.asked_s, now_s
                self._usual_s += (newest_s - self._usual_s) * (_USUAL_WEIGHT if self._usual_s else 1)
                if state.pace > 1:
                    await asyncio.sleep((state.pace - 1) * self._usual_s)
                    state.asked_s = self._clock()
        raise EngineError("the server ended an answer without saying why")

    # --- KV -------------------------------------------------------------------------------------------------

    async def _take_kv(self, state: ServedSequence, awaited: AwaitedKv, block: Block | None) -> None:
        """Take one block that was shipped (None: no more will come)."""
        first, problem = state.num_computed, None
        if block is not None:
            try:
                await self._shipping.import_kv(state.seat, state.tokens[: block.kv.last], block.data)
                state.num_computed = block.kv.last
            except GodwitError as error:
                problem = error.message
        is_last = problem is not None or awaited.is_done(state.num_computed)
        if is_last:
            state.awaited = None
            state.round = OpenRound(state.num_computed, len(state.tokens), self._clock())
        taken = KvRange(first, state.num_computed)
        num_bytes = self._shipping.bytes_per_token * (taken.last - taken.first)
        self._emit(KvImported(state.request, taken, Round(0, 0.0), is_last, problem, num_bytes))

    async def _export(self, state: ServedSequence, kv: KvRange) -> None:
        try:
            data = await self._shipping.export_kv(state.seat, state.tokens[: kv.last])
            event = KvExported(state.request, kv, data)
        except GodwitError as error:
            event = KvExported(state.request, kv, bytearray(), error.message)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            event = KvExported(state.request, kv, bytearray(), f"the server did not answer: {error}")
        if state.request in self._sequences:
            self._emit(event)

    @property
    def _shipping(self) -> KvShipping:
        if self._kv is None:
            raise EngineError(f"{self.info.name} ships no KV")
        return self._kv

    # --- commands -------------------------------------------------------------------------------------------

    def _do_open(self, request: RequestId, spec: SequenceSpec, awaits: KvOffer | None) -> None:
        tokens = [*spec.prompt_ids, *spec.output_ids]
        first = OpenRound(0, len(tokens), self._clock())
        awaited = None if awaits is None else AwaitedKv(awaits)
        state = ServedSequence(request, self._free.pop(), spec, tokens, first, awaited)
        self._sequences[request] = state
        self._advance(state)

    def _do_append(self, state: ServedSequence, ids: tuple[TokenId, ...]) -> None:
        if state.phase is Phase.GENERATING:
            self._fail(state, EngineError("tokens were appended to a request that is generating"))
            self._cancel(state)
            return
        if len(state.tokens) + len(ids) > self.info.context_tokens:
            self._fail(state, EngineError(f"more than {self.info.context_tokens} tokens were appended"))
            self._cancel(state)
            return
        state.tokens.extend(ids)
        if state.round is None:
            state.round = OpenRound(state.num_computed, len(state.tokens), self._clock())
        self._advance(state)

    def _do_export(self, request: RequestId, kv: KvRange) -> None:
        if (state := self._sequences.get(request)) is not None:
            self._spawn(self._export(state, kv))

    def _do_import(self, state: ServedSequence, block: Block) -> None:
        if state.awaited is not None:
            state.awaited.put(block)
            self._advance(state)

    def _do_stop_awaiting(self, state: ServedSequence) -> None:
        if state.awaited is not None:
            state.awaited.is_over = True
            self._advance(state)

    def _do_generate(self, state: ServedSequence) -> None:
        if state.phase is Phase.HELD and state.awaited is None:
            # A pass that is under way is part of what `draw` asks for.
            self._cancel(state)
        state.phase, state.hold_at = Phase.GENERATING, None
        self._advance(state)

    def _do_hold(self, state: ServedSequence, at_output: int | None) -> None:
        if state.phase is Phase.GENERATING and at_output is not None and at_output > state.num_output:
            state.hold_at = at_output
            return
        if state.phase is Phase.GENERATING:
            self._cancel(state)
        state.phase, state.hold_at = Phase.HELD, None
        self._emit(Held(state.request, state.num_output))

    def _do_pace(self, state: ServedSequence, factor: float) -> None:
        state.pace = max(1.0, factor)

    def _do_release(self, request: RequestId) -> None:
        state = self._sequences.pop(request)
        self._free.append(state.slot)
        self._cancel(state)
