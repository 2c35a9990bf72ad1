"""The Engine contract of ports.py over a server that speaks HTTP, in a thread with an event loop of its own.

A held sequence is computed by asking the server for the KV of its tokens, so that they are in its cache; a
generating one is a request that streams. To stop, the connection is closed: what was not reported is dropped.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import structlog

from godwit.engines.limits import check_awaited
from godwit.engines.loopthread import LoopThread
from godwit.engines.progress import ProgressWatch
from godwit.engines.readers import Readers
from godwit.engines.sequence import OpenRound, Phase
from godwit.engines.served_sequence import ServedSequence
from godwit.engines.server import UNANSWERED, KvShipping, Seat, Server, reason_of
from godwit.engines.slots import SlotBook
from godwit.errors import EngineError, GodwitError
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
KV_S = 60.0
"""A block of KV that takes longer is computed instead."""


class ServedEngine:
    """Serves up to `server.slots` sequences; each has at most one request under way at the server."""

    def __init__(
        self, server: Server, kv: KvShipping | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._kv = kv
        self._clock = clock
        self._loop = LoopThread(f"engine-{server.info.name}", server.close, self._broken)
        self._slots = SlotBook(server.slots, server.info.name)
        self._readers = Readers(server.info.name)
        self._watch = ProgressWatch(server.progress, self._owed_since, clock)
        # The loop's side.
        self._sequences: dict[RequestId, ServedSequence] = {}
        self._free = list(range(server.slots))
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
        """Since when the server owes an answer, of several the oldest, or when it last computed, if later."""
        since_s = self._owed_since()
        return None if since_s is None else max(since_s, self._watch.moved_s)

    def _owed_since(self) -> float | None:
        working = [s for s in list(self._sequences.values()) if s.work is not None]
        return min((s.asked_s for s in working if s.phase is not Phase.ENDED), default=None)

    @property
    def free_slots(self) -> int:
        return self._slots.num_free

    def start(self, on_step: OnStep) -> None:
        """Start the thread; `on_step` is called in it."""
        self._on_step = on_step
        self._loop.call(lambda: self._loop.spawn(self._watch.run))
        self._loop.start()

    def close(self) -> None:
        """Stop all requests and the server; a second call does nothing."""
        if not self._readers.refuse():
            return
        self._slots.refuse("the engine is closed")
        self._readers.wait()
        self._loop.close()

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        with self._readers.reading():
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
        check_awaited(request, sequence, awaits)
        with self._slots.taking(request):
            self._loop.call(lambda: self._do_open(request, sequence, awaits))

    def export_kv(self, request: RequestId, kv: KvRange) -> None:
        self._loop.call(lambda: self._do_export(request, kv))

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
                self._loop.call(lambda: self._do_release(request))

    def _with(self, request: RequestId, act: Callable[[ServedSequence], None]) -> None:
        def do() -> None:
            state = self._sequences.get(request)
            if state is not None and state.phase is not Phase.ENDED:
                act(state)

        self._loop.call(do)

    # The loop.

    def _emit(self, *events: EngineEvent) -> None:
        self._num_steps += 1
        self._on_step(events)

    def _advance(self, state: ServedSequence) -> None:
        """Ask the server for what comes next, unless it is at work for this sequence."""
        if state.work is not None or state.phase is Phase.ENDED:
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
        state.work = self._loop.spawn(lambda: self._work(state, doing))
        if state.work is not None:
            state.work.add_done_callback(lambda _: self._worked(state))

    async def _work(self, state: ServedSequence, doing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await self._attempt(state, doing)
        except Exception as error:  # a task's top: a server's answer decides what fails here
            _log.exception("request failed", model=self.info.name, request=state.request)
            self._fail(state, EngineError(f"the server's answer was not understood: {error!r}"))

    async def _attempt(self, state: ServedSequence, doing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await doing()
        except GodwitError as error:
            self._fail(state, error)
        except UNANSWERED as error:
            await self._lost(state, reason_of(error))

    def _worked(self, state: ServedSequence) -> None:
        """Cancelled or not, it is over, and a command may have come meanwhile."""
        state.work = None
        self._advance(state)

    async def _lost(self, state: ServedSequence, reason: str) -> None:
        """One request got no answer: is it this one alone, or is the server gone?"""
        if await self._server.is_alive():
            self._fail(state, EngineError(f"the server broke off: {reason}"))
            return
        state.phase = Phase.ENDED
        self._give_up(f"the server of {self.info.name} is gone: {reason}")

    def _broken(self, error: Exception) -> None:
        """A command has failed: what it was about may hang for ever."""
        self._give_up(f"the engine failed: {error!r}")

    def _give_up(self, failure: str) -> None:
        if self._slots.refuse(failure):
            _log.error("engine gives up", model=self.info.name, reason=failure)
            self._emit(Failed(None, failure, self.info.name))

    def _fail(self, state: ServedSequence, error: GodwitError) -> None:
        if state.phase is not Phase.ENDED:
            state.phase = Phase.ENDED
            self._emit(Failed(state.request, error.message, code=error.code))

    # --- computing ------------------------------------------------------------------------------------------

    async def _compute(self, state: ServedSequence) -> None:
        await asyncio.sleep(START_WAIT_S)
        first, target, block = state.num_computed, len(state.tokens), self._server.block_tokens
        start_s = self._clock() if state.round is None else state.round.start_s
        # What is in no full block is not kept but left to `draw`. A server wants room for an output.
        kept = min(target, self.info.context_tokens - 1) // block * block
        if kept > first // block * block:
            await self._server.prefill(state.seat, state.tokens[:kept])
        state.num_computed = target
        state.round = None if len(state.tokens) == target else OpenRound(target, target, self._clock())
        self._emit(Computed(state.request, target, target - first, self._clock() - start_s))

    async def _draw(self, state: ServedSequence) -> None:
        if (end := state.stop_due(self.info.context_tokens)) is not None:
            self._emit(end)
            return
        output = tuple(state.tokens[len(state.spec.prompt_ids) :])
        spec, is_first = SequenceSpec(state.spec.prompt_ids, output, state.spec.sampling), True
        async with aclosing(self._server.draw(state.seat, spec)) as answer:
            async for drawn in answer:
                if events := state.take(drawn, self.info.context_tokens):
                    self._emit(*events)
                if state.phase is not Phase.GENERATING:
                    return
                now_s = self._clock()
                newest_s, state.asked_s = now_s - state.asked_s, now_s
                # The first took a prefill too.
                if not is_first:
                    self._usual_s += (newest_s - self._usual_s) * (_USUAL_WEIGHT if self._usual_s else 1)
                is_first = False
                # Even of what is here already each is a boundary, at which commands take effect.
                await asyncio.sleep((state.pace - 1) * self._usual_s)
                state.asked_s = self._clock()
        raise EngineError("the server ended an answer without saying why")

    # --- KV -------------------------------------------------------------------------------------------------

    async def _take_kv(self, state: ServedSequence, awaited: AwaitedKv, block: Block | None) -> None:
        """Take one block that was shipped (None: no more will come)."""
        first, problem = state.num_computed, None
        if block is not None:
            problem = await self._import(state.seat, state.tokens[: block.kv.last], block.data)
            state.num_computed = block.kv.last if problem is None else first
        is_last = block is None or problem is not None or awaited.is_done(state.num_computed)
        if is_last:
            state.awaited = None
            state.round = OpenRound(state.num_computed, len(state.tokens), self._clock())
        taken = KvRange(first, state.num_computed)
        num_bytes = self._shipping.bytes_per_token * (taken.last - first) if taken.last > first else 0
        self._emit(KvImported(state.request, taken, Round(0, 0.0), is_last, problem, num_bytes))

    async def _import(self, seat: Seat, ids: Sequence[TokenId], data: bytearray) -> str | None:
        """Why a block could not be taken; None where it was."""
        try:
            async with asyncio.timeout(KV_S):
                await self._shipping.import_kv(seat, ids, data)
        except GodwitError as error:
            return error.message
        except UNANSWERED as error:
            if not await self._server.is_alive():
                raise
            return f"the server did not take it: {reason_of(error)}"
        return None

    async def _export(self, state: ServedSequence, kv: KvRange) -> None:
        data, problem = bytearray(), None
        try:
            if not 0 <= kv.first < kv.last <= max(state.num_computed, len(state.tokens) - 1):
                raise EngineError(f"{len(state.tokens)} tokens have no KV up to {kv.last}")
            async with asyncio.timeout(KV_S):
                data = await self._shipping.export_kv(state.seat, state.tokens[: kv.last])
        except GodwitError as error:
            problem = error.message
        except UNANSWERED as error:
            problem = f"the server did not answer: {reason_of(error)}"
        except Exception as error:  # as in `_work`
            problem = f"the server's answer was not understood: {error!r}"
        if self._sequences.get(state.request) is state:
            self._emit(KvExported(state.request, kv, data, problem))

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
            state.cancel()
            return
        if len(state.tokens) + len(ids) > self.info.context_tokens:
            self._fail(state, EngineError(f"more than {self.info.context_tokens} tokens were appended"))
            state.cancel()
            return
        state.tokens.extend(ids)
        if state.round is None:
            state.round = OpenRound(state.num_computed, len(state.tokens), self._clock())
        self._advance(state)

    def _do_export(self, request: RequestId, kv: KvRange) -> None:
        if (state := self._sequences.get(request)) is not None:
            self._loop.spawn(lambda: self._export(state, kv))

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
            state.cancel()
        state.phase, state.hold_at = Phase.GENERATING, None
        self._advance(state)

    def _do_hold(self, state: ServedSequence, at_output: int | None) -> None:
        if state.phase is Phase.GENERATING and at_output is not None and at_output > state.num_output:
            state.hold_at = at_output
            return
        if state.phase is Phase.GENERATING and state.awaited is None:
            state.cancel()
        state.phase, state.hold_at = Phase.HELD, None
        self._emit(Held(state.request, state.num_output))

    def _do_pace(self, state: ServedSequence, factor: float) -> None:
        state.pace = max(1.0, factor)

    def _do_release(self, request: RequestId) -> None:
        state = self._sequences.pop(request)
        self._free.append(state.slot)
        state.phase = Phase.ENDED
        state.cancel()
