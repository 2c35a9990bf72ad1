"""Continuous batching: the Engine contract of ports.py over any Runner, in one thread."""

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from godwit.engines.inbox import Inbox
from godwit.engines.limits import check_awaited
from godwit.engines.readers import Readers
from godwit.engines.runner import Runner
from godwit.engines.sequence import OpenRound, Phase, Plan, SequenceState, plan_step
from godwit.engines.slots import SlotBook
from godwit.errors import EngineError, GodwitError
from godwit.ports import (
    Computed,
    Ended,
    EngineEvent,
    Failed,
    Generated,
    Held,
    KvExported,
    KvImported,
    OnStep,
    SequenceSpec,
)
from godwit.protocol.awaiting import AwaitedKv, Block
from godwit.types import ChatMessage, KvOffer, KvRange, ModelInfo, RequestId, Round, Sampling, TokenId

_log = structlog.get_logger(__name__)

MAX_WAITING_COMMANDS = 100_000
_USUAL_WEIGHT = 0.2  # of the newest step in the running mean that `pace` multiplies

Command = Callable[[], None]


def _drop(_events: Sequence[EngineEvent]) -> None:
    """Where events go before `start`."""


class BatchingEngine:
    """Serves up to `runner.slots` sequences; each step is one pass over what `plan_step` chooses.

    A step is: apply the commands that wait, draw for every sequence whose logits are there, report, compute.
    """

    def __init__(
        self, runner: Runner, *, prefill_chunk_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runner = runner
        self._chunk_tokens = prefill_chunk_tokens
        self._clock = clock
        self._inbox: Inbox[Command] = Inbox(MAX_WAITING_COMMANDS)
        self._thread: threading.Thread | None = None
        # The callers' side.
        self._slots = SlotBook(runner.slots, runner.info.name)
        self._readers = Readers(runner.info.name)
        self._is_closed = False
        # The engine thread's side.
        self._sequences: dict[RequestId, SequenceState] = {}
        self._free = list(range(runner.slots))
        self._events: list[EngineEvent] = []
        self._on_step: OnStep = _drop
        self._num_steps = 0
        self._step_started_s: float | None = None
        self._num_turns = 0
        self._usual_s = 0.0

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def slots(self) -> int:
        return self._runner.slots

    @property
    def kv_layout(self) -> str | None:
        return self._runner.kv_layout

    @property
    def ships_whole_kv(self) -> bool:
        return False

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def step_started_s(self) -> float | None:
        return self._step_started_s

    @property
    def free_slots(self) -> int:
        return self._slots.num_free

    def start(self, on_step: OnStep) -> None:
        """Start the thread; `on_step` is called in it."""
        self._on_step = on_step
        self._thread = threading.Thread(target=self._run, name=f"engine-{self.info.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread at the next token boundary and free the model; a second call does nothing."""
        if not self._readers.refuse():
            return
        self._is_closed = True
        self._slots.refuse("the engine is closed")
        self._inbox.put(lambda: None, is_urgent=True)
        self._runner.interrupt()
        if self._thread is not None:
            self._thread.join()
        self._readers.wait()
        self._runner.close()

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        with self._readers.reading():
            return self._runner.tokenize(text, add_special=add_special)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return self._runner.render(messages)

    def piece(self, token: TokenId) -> bytes:
        return self._runner.piece(token)

    def try_out(self, sampling: Sampling) -> None:
        with self._readers.reading():
            self._runner.try_out(sampling)

    def check(self, sequence: SequenceSpec) -> None:
        self._runner.check(sequence)

    # Commands. Each is a closure that runs in the engine's thread.

    def open(self, request: RequestId, sequence: SequenceSpec, awaits: KvOffer | None = None) -> None:
        check_awaited(request, sequence, awaits)
        start_s = self._clock()
        with self._slots.taking(request):
            self._inbox.put(lambda: self._do_open(request, sequence, awaits, start_s))

    def export_kv(self, request: RequestId, kv: KvRange) -> None:
        self._inbox.put(lambda: self._do_export(request, kv))

    def import_kv(self, request: RequestId, kv: KvRange, data: bytearray) -> None:
        self._inbox.put(lambda: self._with(request, lambda s: self._do_import(s, Block(kv, data))))

    def stop_awaiting(self, request: RequestId) -> None:
        self._inbox.put(lambda: self._with(request, self._do_stop_awaiting))

    def append(self, request: RequestId, ids: Sequence[TokenId]) -> None:
        self._inbox.put(lambda: self._with(request, lambda s: self._do_append(s, tuple(ids))))

    def generate(self, request: RequestId) -> None:
        self._inbox.put(lambda: self._with(request, self._do_generate))

    def hold(self, request: RequestId, at_output: int | None = None) -> None:
        self._inbox.put(lambda: self._with(request, lambda s: self._do_hold(s, at_output)))

    def pace(self, request: RequestId, factor: float) -> None:
        self._inbox.put(lambda: self._with(request, lambda s: self._do_pace(s, factor)))

    def release(self, request: RequestId) -> None:
        with self._slots.releasing(request) as has_slot:
            if has_slot:
                self._inbox.put(lambda: self._do_release(request), is_urgent=True)

    # The thread.

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # the loop's top: whatever it is, the worker must hear of it
            _log.exception("engine failed", model=self.info.name)
            failure = f"the engine failed: {error}"
            self._slots.refuse(failure)
            self._events.append(Failed(None, failure, self.info.name))
            self._report()

    def _loop(self) -> None:
        wait_s: float | None = 0
        while not self._is_closed:
            commands = self._inbox.take(wait_s)
            # Not the pass alone: a command or a draw (a grammar's, say) may be what hangs.
            self._step_started_s = self._clock()
            for command in commands:
                command()
            self._draw_all()
            self._report()
            started_s = self._clock()
            plan = plan_step(self._sequences.values(), started_s, self._chunk_tokens)
            wait_s = plan.wait_s
            if plan.spans:
                self._compute(plan, started_s)
                wait_s = 0
            self._step_started_s = None

    def _compute(self, plan: Plan, started_s: float) -> None:
        self._runner.forward([span for _, span in plan.spans])
        self._num_steps += 1
        now_s = self._clock()
        if not plan.has_chunk:
            newest_s = now_s - started_s
            self._usual_s += (newest_s - self._usual_s) * (_USUAL_WEIGHT if self._usual_s else 1)
        for state, span in plan.spans:
            state.num_computed = span.start + len(span.ids)
            state.turn = self._next_turn()
            state.computing_s += now_s - started_s
            self._take_kv(state)
            self._finish_rounds(state, now_s)

    def _finish_rounds(self, state: SequenceState, now_s: float) -> None:
        """Report a finished round and begin the next one where tokens came in meanwhile."""
        done = state.round
        if done is None or state.num_computed < done.target:
            return
        state.round = None
        if state.phase is not Phase.HELD:
            return
        num_round = done.target - done.first
        self._events.append(Computed(state.request, done.target, num_round, now_s - done.start_s))
        if len(state.tokens) > done.target:
            state.round = OpenRound(done.target, len(state.tokens), now_s)

    def _draw_all(self) -> None:
        for state in self._sequences.values():
            if state.is_ready_to_draw:
                self._draw(state)

    def _draw(self, state: SequenceState) -> None:
        try:
            token = self._runner.draw(state.slot)
        except GodwitError as error:
            self._fail(state, error)
            return
        if token is None:
            self._end(state, "stop")
            return
        self._events.append(Generated(state.request, state.num_output, token))
        state.tokens.append(token.id)
        state.not_before_s = self._clock() + (state.pace - 1) * self._usual_s if state.pace > 1 else 0.0
        self._stop_where_due(state)

    def _stop_where_due(self, state: SequenceState) -> None:
        """End or hold a generating sequence that may draw no more."""
        is_full = len(state.tokens) >= self.info.context_tokens
        if is_full or state.num_output >= state.spec.sampling.max_tokens:
            self._end(state, "length")
        elif state.hold_at is not None and state.num_output >= state.hold_at:
            self._hold_now(state)

    def _hold_now(self, state: SequenceState) -> None:
        state.phase, state.hold_at = Phase.HELD, None
        self._events.append(Held(state.request, state.num_output))

    def _end(self, state: SequenceState, reason: str) -> None:
        state.phase = Phase.ENDED
        self._events.append(Ended(state.request, state.num_output, reason))

    def _fail(self, state: SequenceState, error: GodwitError) -> None:
        state.phase = Phase.ENDED
        self._events.append(Failed(state.request, error.message, code=error.code))

    def _report(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._on_step(events)

    def _next_turn(self) -> int:
        self._num_turns += 1
        return self._num_turns

    def _with(self, request: RequestId, act: Callable[[SequenceState], None]) -> None:
        state = self._sequences.get(request)
        if state is not None and state.phase is not Phase.ENDED:
            act(state)

    def _do_open(
        self, request: RequestId, spec: SequenceSpec, awaits: KvOffer | None, start_s: float
    ) -> None:
        tokens = [*spec.prompt_ids, *spec.output_ids]
        first = OpenRound(0, len(tokens), start_s)
        state = SequenceState(request, self._free.pop(), spec, tokens, first, self._next_turn())
        state.awaited = None if awaits is None else AwaitedKv(awaits)
        self._sequences[request] = state
        try:
            self._runner.open(state.slot, spec)
        except GodwitError as error:
            self._fail(state, error)

    def _do_append(self, state: SequenceState, ids: tuple[TokenId, ...]) -> None:
        if state.phase is Phase.GENERATING:
            self._fail(state, EngineError("tokens were appended to a request that is generating"))
            return
        if len(state.tokens) + len(ids) > self.info.context_tokens:
            self._fail(state, EngineError(f"more than {self.info.context_tokens} tokens were appended"))
            return
        try:
            self._runner.accept(state.slot, ids)
        except GodwitError as error:
            self._fail(state, error)
            return
        state.tokens.extend(ids)
        if state.round is None or (state.awaited is None and state.round.first == state.num_computed):
            # Nothing of the round is computed yet: whatever came in by now belongs to it.
            begin_s = self._clock() if state.round is None else state.round.start_s
            state.round = OpenRound(state.num_computed, len(state.tokens), begin_s)
            self._finish_rounds(state, self._clock())

    def _do_export(self, request: RequestId, kv: KvRange) -> None:
        state = self._sequences.get(request)
        if state is None:
            return
        try:
            if not 0 <= kv.first < kv.last <= state.num_computed:
                raise EngineError(f"{state.num_computed} tokens have KV, not those up to {kv.last}")
            self._events.append(KvExported(request, kv, self._runner.export_kv(state.slot, kv)))
        except GodwitError as error:
            self._events.append(KvExported(request, kv, bytearray(), error.message))

    def _do_import(self, state: SequenceState, block: Block) -> None:
        if state.awaited is not None:
            state.awaited.put(block)
            self._take_kv(state)

    def _do_stop_awaiting(self, state: SequenceState) -> None:
        if state.awaited is not None:
            state.awaited.is_over = True
            self._take_kv(state)

    def _take_kv(self, state: SequenceState) -> None:
        """Take the awaited KV whose turn it is; what the runner refuses is computed like any other tokens."""
        awaited, round_ = state.awaited, state.round
        if awaited is None:
            return
        first, problem = state.num_computed, None
        while problem is None and (block := awaited.take(state.num_computed)) is not None:
            try:
                self._runner.import_kv(state.slot, block.kv, block.data)
                state.num_computed = block.kv.last
            except GodwitError as error:
                problem = error.message
        is_last = problem is not None or awaited.is_done(state.num_computed)
        if is_last:
            state.awaited = None
        if not is_last and state.num_computed == first:
            return
        num_before = 0 if round_ is None else first - round_.first
        if round_ is not None and (state.num_computed > first or not num_before):
            # What was not computed is not of the round's tokens, nor is the wait for it of its seconds.
            target = round_.target if round_.target > state.num_computed else len(state.tokens)
            state.round = OpenRound(state.num_computed, target, self._clock())
        computed, state.computing_s = Round(num_before, state.computing_s), 0.0
        kv = KvRange(first, state.num_computed)
        self._events.append(KvImported(state.request, kv, computed, is_last, problem))

    def _do_generate(self, state: SequenceState) -> None:
        state.phase, state.hold_at = Phase.GENERATING, None
        self._stop_where_due(state)

    def _do_hold(self, state: SequenceState, at_output: int | None) -> None:
        if state.phase is Phase.HELD or at_output is None or at_output <= state.num_output:
            self._hold_now(state)
        else:
            state.hold_at = at_output

    def _do_pace(self, state: SequenceState, factor: float) -> None:
        state.pace = max(1.0, factor)

    def _do_release(self, request: RequestId) -> None:
        state = self._sequences.pop(request)
        self._runner.clear(state.slot)
        self._free.append(state.slot)
