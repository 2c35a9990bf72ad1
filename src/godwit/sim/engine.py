"""An engine without a model or a thread: who drives it lets it begin and end its steps."""

from collections.abc import Callable, Sequence

from godwit.errors import ConflictError, ContextTooLongError, EngineError, NoFreeSlotError
from godwit.ports import (
    Clock,
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
from godwit.sim.draws import Draws, piece
from godwit.sim.sequence import INF, SOON_S, TAIL_TOKENS, Plan, Slot, decode_s, share_chunk
from godwit.sim.spec import Rates
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

Meter = Callable[[RequestId, int, int, float], None]
"""(sequence, first, last, seconds a token): the KV of these tokens was computed, or they were drawn."""


def _ignore(*_: object) -> None:
    """Where nobody wants to know."""


class ModelledEngine:
    """Implements `ports.Engine`. Commands wait for the next `begin`; `on_command` hears that one waits.

    `begin` and `end` make a step. Its events are those of `end`: first what the commands caused.
    """

    def __init__(
        self,
        info: ModelInfo,
        slots: int,
        draws: Draws,
        rates: Rates,
        now: Clock,
        kv_layout: str | None = "modelled",
        on_command: Callable[[], None] = _ignore,
        on_free: Callable[[], None] = _ignore,
        meter: Meter = _ignore,
    ) -> None:
        self.info = info
        self.slots = slots
        self.kv_layout = kv_layout
        self.ships_whole_kv = False
        self.num_steps = 0
        self.step_started_s: float | None = None
        self.num_imported = 0
        self._draws = draws
        self._rates = rates
        self._now = now
        self._on_command = on_command
        self._on_free = on_free
        self._meter = meter
        self._sequences: dict[RequestId, Slot] = {}
        self._taken: set[RequestId] = set()
        self._commands: list[Callable[[], None]] = []
        self._events: list[EngineEvent] = []
        self._is_closed = False
        self._num_turns = 0
        self._usual_s = 0.0

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._taken)

    @property
    def sequences(self) -> list[RequestId]:
        """All that hold a slot, as far as the steps have got."""
        return list(self._sequences)

    @property
    def has_commands(self) -> bool:
        """Whether commands wait for the next step."""
        return bool(self._commands) and not self._is_closed

    @property
    def num_commands(self) -> int:
        """How many wait for the next step."""
        return len(self._commands)

    @property
    def generating(self) -> list[RequestId]:
        """The sequences that draw tokens now."""
        return [name for name, one in self._sequences.items() if one.is_generating and not one.is_ended]

    def start(self, on_step: OnStep) -> None:
        raise NotImplementedError("whoever drives this engine takes its events from `end`")

    def close(self) -> None:
        self._is_closed = True

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        return [1] * add_special + list(text.encode())

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return "".join(f"{one.role}:{one.content}\n" for one in messages)

    def piece(self, token: TokenId) -> bytes:
        return piece(token)

    def try_out(self, sampling: Sampling) -> None:
        """It knows no grammars."""

    def check(self, sequence: SequenceSpec) -> None:
        """ContextTooLongError; it takes everything else."""
        num_tokens = len(sequence.prompt_ids) + len(sequence.output_ids)
        if num_tokens >= self.info.context_tokens:
            raise ContextTooLongError(
                f"{num_tokens} tokens leave no room for an answer in a context of {self.info.context_tokens}"
            )

    # --- commands -------------------------------------------------------------------------------------------

    def open(self, request: RequestId, sequence: SequenceSpec, awaits: KvOffer | None = None) -> None:
        if self._is_closed:
            raise EngineError("the engine is closed")
        if request in self._taken:
            raise ConflictError(f"{request} has a slot already")
        if self.free_slots == 0:
            raise NoFreeSlotError("all slots are taken")
        self._taken.add(request)
        now = self._now()
        opened = Slot(sequence, [*sequence.prompt_ids, *sequence.output_ids], now, own_began_s=now)
        if awaits is not None:
            assert 0 <= awaits.kv.first < awaits.kv.last < len(opened.tokens)
            opened.awaited = AwaitedKv(awaits)
        opened.round = (0, len(opened.tokens))
        self._add(lambda: self._sequences.__setitem__(request, opened))

    def export_kv(self, request: RequestId, kv: KvRange) -> None:
        self._command(request, lambda one: self._export(request, one, kv))

    def import_kv(self, request: RequestId, kv: KvRange, data: bytearray) -> None:
        def act(one: Slot) -> None:
            if one.awaited is not None:
                one.awaited.put(Block(kv, data))
                self._take_kv(request, one, one.awaited)

        self._command(request, act)

    def stop_awaiting(self, request: RequestId) -> None:
        def act(one: Slot) -> None:
            if one.awaited is not None:
                one.awaited.is_over = True
                self._take_kv(request, one, one.awaited)

        self._command(request, act)

    def append(self, request: RequestId, ids: Sequence[TokenId]) -> None:
        def act(one: Slot) -> None:
            assert not one.is_generating, "tokens were appended to a request that generates"
            one.tokens.extend(ids)
            if one.round is None:
                one.began_s = self._now()
            if one.round is None or self._may_join(one):
                one.round = (one.num_computed, len(one.tokens))

        self._command(request, act)

    def generate(self, request: RequestId) -> None:
        def act(one: Slot) -> None:
            one.is_generating, one.hold_at, one.round, one.pace = True, None, None, 1.0
            self._stop_where_due(request, one)

        self._command(request, act)

    def hold(self, request: RequestId, at_output: int | None = None) -> None:
        def act(one: Slot) -> None:
            if not one.is_generating or at_output is None or at_output <= one.num_output:
                self._hold_now(request, one)
            else:
                one.hold_at = at_output

        self._command(request, act)

    def pace(self, request: RequestId, factor: float) -> None:
        def act(one: Slot) -> None:
            one.pace = max(1.0, factor)

        self._command(request, act)

    def release(self, request: RequestId) -> None:
        if request in self._taken:
            self._taken.remove(request)
            self._add(lambda: self._sequences.__delitem__(request))
            self._on_free()

    def _may_join(self, one: Slot) -> bool:
        """Whether what is appended belongs to the open round: nothing of it is computed yet."""
        return one.awaited is None and one.round is not None and one.round[0] == one.num_computed

    def _command(self, request: RequestId, act: Callable[[Slot], None]) -> None:
        def run() -> None:
            one = self._sequences.get(request)
            if one is not None and not one.is_ended:
                act(one)

        self._add(run)

    def _add(self, act: Callable[[], None]) -> None:
        self._commands.append(act)
        self._on_command()

    # --- steps ----------------------------------------------------------------------------------------------

    def begin(self, most_steps: int = 1) -> Plan | None:
        """Take the commands and say what comes next; None: nothing to do and nothing to tell."""
        if self._is_closed:
            return None
        commands, self._commands = self._commands, []
        for command in commands:
            command()
        return self._plan(most_steps)

    def take_events(self) -> list[EngineEvent]:
        """What the commands have caused: nobody has to wait for the step that follows them."""
        events, self._events = self._events, []
        return events

    def _plan(self, steps: int) -> Plan | None:
        """All short tails that are due, and at most a chunk of prompts, of those that wait longest."""
        num_single, num_more, wait_s, is_ready = 0, 0, INF, False
        prefilling: list[Slot] = []
        for one in self._sequences.values():
            num_new = one.planned = 0 if one.is_ended else one.num_new
            if num_new == 0:
                # Held with all computed, and told to go on: the last pass has made its logits already.
                is_ready |= one.is_generating and not one.is_ended and one.num_computed == len(one.tokens)
            elif num_new > TAIL_TOKENS or num_new > self._rates.chunk_tokens:
                prefilling.append(one)
            elif one.not_before_s and (due_s := one.not_before_s - self._now()) > SOON_S:
                one.planned, wait_s, steps = 0, min(wait_s, due_s), 1
            elif num_new == 1:
                num_single += 1
                steps = min(steps, self._most_steps(one)) if one.is_generating else 1
            else:
                num_more += num_new
        if is_ready:
            # It draws before anything is computed.
            for one in self._sequences.values():
                one.planned = 0
            return Plan(1, 0.0)
        num_more += share_chunk(prefilling, self._rates.chunk_tokens)
        if num_single:
            self._usual_s = decode_s(self._rates, num_single)
        elif num_more == 0:
            return None if wait_s == INF else Plan(1, wait_s, is_wait=True)
        step_s = num_more / self._rates.prefill_tps + (self._usual_s if num_single else 0.0)
        return Plan(1 if num_more else max(1, steps), step_s)

    def _most_steps(self, one: Slot) -> int:
        most = self._draws.num_certain(one.num_output, one.spec.sampling)
        most = min(most, one.spec.sampling.max_tokens - one.num_output)
        most = min(most, self.info.context_tokens - len(one.tokens))
        return most if one.hold_at is None else min(most, one.hold_at - one.num_output)

    def end(self, plan: Plan) -> list[EngineEvent]:
        """Let the steps of a plan be over; what happened in them."""
        if self._is_closed:
            return []
        for request, one in self._sequences.items():
            if not one.is_ended and (one.awaited is not None or one.is_generating or one.round is not None):
                self._advance(request, one, plan)
        self.num_steps += plan.steps
        return self.take_events()

    def fail(self, request: RequestId | None) -> list[EngineEvent]:
        """One sequence, or (None) the whole engine, cannot go on."""
        if request is not None and request in self._sequences:
            self._sequences[request].is_ended = True
        self._is_closed |= request is None
        model = self.info.name if request is None else None
        return [*self.take_events(), Failed(request, "out of order", model)]

    def _advance(self, request: RequestId, one: Slot, plan: Plan) -> None:
        num_new, first = one.planned, one.num_computed
        if num_new > 0:
            self._num_turns += 1
            one.turn = self._num_turns
        one.num_computed += num_new
        one.num_own += num_new
        if num_new > 1 or not one.is_generating:
            self._meter(request, first, one.num_computed, 1 / self._rates.prefill_tps)
        if one.awaited is not None:
            self._take_kv(request, one, one.awaited)
        if one.round is not None and one.num_computed == one.round[1]:
            first, end = one.round
            now = self._now()
            self._events.append(Computed(request, end, end - first, now - one.began_s))
            one.round = (end, len(one.tokens)) if len(one.tokens) > end else None
            one.began_s = now
        if one.is_generating and one.num_computed == len(one.tokens):
            self._draw(request, one, plan)

    def _take_kv(self, request: RequestId, one: Slot, awaited: AwaitedKv) -> None:
        first, problem = one.num_computed, None
        while problem is None and (block := awaited.take(one.num_computed)) is not None:
            if block.data == self._draws.kv(one.tokens, block.kv):
                one.num_computed = block.kv.last
            else:
                problem = "it is of another context"
        is_last = problem is not None or awaited.is_done(one.num_computed)
        one.awaited = None if is_last else awaited
        if not is_last and one.num_computed == first:
            return
        self.num_imported += one.num_computed - first
        if one.round is not None and one.num_computed > first:
            is_behind = one.round[1] > one.num_computed
            one.round = (one.num_computed, one.round[1] if is_behind else len(one.tokens))
        now = self._now()
        computed = Round(one.num_own, now - one.own_began_s)
        one.num_own, one.own_began_s = 0, now
        self._events.append(KvImported(request, KvRange(first, one.num_computed), computed, is_last, problem))

    def _export(self, request: RequestId, one: Slot, kv: KvRange) -> None:
        if kv.last > one.num_computed:
            self._events.append(KvExported(request, kv, bytearray(), "it is not computed"))
        else:
            self._events.append(KvExported(request, kv, self._draws.kv(one.tokens, kv)))

    def _draw(self, request: RequestId, one: Slot, plan: Plan) -> None:
        num_prompt, sampling = len(one.spec.prompt_ids), one.spec.sampling
        self._meter(request, len(one.tokens), len(one.tokens) + plan.steps, plan.step_s)
        for _ in range(plan.steps):
            token = self._draws.token(one.tokens, num_prompt, sampling)
            if token is None:
                self._end(request, one, "stop")
                return
            self._events.append(Generated(request, len(one.tokens) - num_prompt, token))
            one.tokens.append(token.id)
        # All but the latest have been computed in the steps that followed them.
        one.num_computed = len(one.tokens) - 1
        one.not_before_s = self._now() + (one.pace - 1) * self._usual_s if one.pace > 1 else 0.0
        self._stop_where_due(request, one)

    def _stop_where_due(self, request: RequestId, one: Slot) -> None:
        is_full = len(one.tokens) >= self.info.context_tokens
        if is_full or one.num_output >= one.spec.sampling.max_tokens:
            self._end(request, one, "length")
        elif one.hold_at is not None and one.num_output >= one.hold_at:
            self._hold_now(request, one)

    def _hold_now(self, request: RequestId, one: Slot) -> None:
        one.is_generating, one.hold_at = False, None
        self._events.append(Held(request, one.num_output))

    def _end(self, request: RequestId, one: Slot, reason: str) -> None:
        one.is_ended = True
        self._events.append(Ended(request, one.num_output, reason))
