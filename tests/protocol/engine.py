"""An engine without a thread or a model: the test steps it, and each token is a hash of all before it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from godwit.errors import BadRequestError, ConflictError, EngineError, NoFreeSlotError
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
from godwit.types import (
    ChatMessage,
    KvOffer,
    KvRange,
    ModelInfo,
    RequestId,
    Round,
    Sampling,
    Token,
    TokenId,
)

NUM_VOCAB = 1000
CHUNK_TOKENS = 4
KV_BYTES_PER_TOKEN = 100
FORBIDDEN_SEED = 685
"""Stands for sampling that an engine may refuse."""


def next_token(tokens: Sequence[TokenId], sampling: Sampling) -> TokenId | None:
    """The token after `tokens`, None for the end: a function of all tokens and the seed."""
    text = f"{sampling.seed}:{','.join(map(str, tokens))}"
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return None if number % 29 == 0 and not sampling.ignore_eos else number % NUM_VOCAB


def piece(token: TokenId) -> bytes:
    """The bytes of a token."""
    return f"<{token}>".encode()


def kv_of(tokens: Sequence[TokenId], kv: KvRange) -> bytearray:
    """What stands for the KV of a range: a function of all tokens up to its end."""
    text = f"{kv.first}:{','.join(map(str, tokens[: kv.last]))}"
    num_bytes = (kv.last - kv.first) * KV_BYTES_PER_TOKEN
    return bytearray(hashlib.shake_128(text.encode()).digest(num_bytes))


def unmoved_run(prompt_ids: Sequence[TokenId], sampling: Sampling) -> tuple[list[TokenId], str]:
    """Output and finish reason of a request that nothing happens to."""
    output: list[TokenId] = []
    while len(output) < sampling.max_tokens:
        token = next_token([*prompt_ids, *output], sampling)
        if token is None:
            return output, "stop"
        output.append(token)
    return output, "length"


@dataclass
class Slot:
    """What the engine knows and has computed; `round` is the first token and the end of an open one."""

    spec: SequenceSpec
    tokens: list[TokenId]
    num_computed: int = 0
    round: tuple[int, int] | None = None
    is_generating: bool = False
    is_ended: bool = False
    hold_at: int | None = None
    awaited: AwaitedKv | None = None
    num_own: int = 0

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.spec.prompt_ids)


@dataclass
class StepEngine:
    """Implements `ports.Engine`: commands wait for the next step, events for `Node.take_report`."""

    info: ModelInfo
    slots: int
    kv_layout: str | None = "steps"
    reports: list[list[EngineEvent]] = field(default_factory=list)
    refuses_forbidden_seed: bool = False
    exports_nothing: bool = False
    num_computed: int = 0
    num_imported: int = 0
    num_steps: int = 0
    step_started_s: float | None = None
    _sequences: dict[RequestId, Slot] = field(default_factory=dict)
    _taken: set[RequestId] = field(default_factory=set)
    _commands: list[Callable[[], None]] = field(default_factory=list)
    _events: list[EngineEvent] = field(default_factory=list)
    _is_broken: bool = False

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
        return bool(self._commands) and not self._is_broken

    @property
    def generating(self) -> list[RequestId]:
        """The sequences that draw tokens now."""
        return [name for name, one in self._sequences.items() if one.is_generating and not one.is_ended]

    def start(self, on_step: OnStep) -> None:
        raise NotImplementedError("the world steps this engine")

    def close(self) -> None:
        self._is_broken = True

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        return [1] * add_special + list(text.encode())

    def render(self, messages: Sequence[ChatMessage]) -> str:
        return "".join(f"{one.role}:{one.content}\n" for one in messages)

    def piece(self, token: TokenId) -> bytes:
        return piece(token)

    def try_out(self, sampling: Sampling) -> None:
        """It knows no grammars."""

    def check(self, sequence: SequenceSpec) -> None:
        if self.refuses_forbidden_seed and sequence.sampling.seed == FORBIDDEN_SEED:
            raise BadRequestError("this engine cannot draw so")

    # --- commands -------------------------------------------------------------------------------------------

    def open(self, request: RequestId, sequence: SequenceSpec, awaits: KvOffer | None = None) -> None:
        if self._is_broken:
            raise EngineError("the engine is closed")
        if request in self._taken:
            raise ConflictError(f"{request} has a slot already")
        if self.free_slots == 0:
            raise NoFreeSlotError("all slots are taken")
        self._taken.add(request)
        opened = Slot(sequence, [*sequence.prompt_ids, *sequence.output_ids])
        if awaits is not None:
            assert 0 <= awaits.kv.first < awaits.kv.last < len(opened.tokens)
            opened.awaited = AwaitedKv(awaits)
        opened.round = (0, len(opened.tokens))
        self._commands.append(lambda: self._sequences.__setitem__(request, opened))

    def export_kv(self, request: RequestId, kv: KvRange) -> None:
        def act(one: Slot) -> None:
            if self.exports_nothing or kv.last > one.num_computed:
                self._events.append(KvExported(request, kv, bytearray(), "it is not computed"))
            else:
                self._events.append(KvExported(request, kv, kv_of(one.tokens, kv)))

        self._command(request, act)

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
                one.round = (one.num_computed, len(one.tokens))

        self._command(request, act)

    def generate(self, request: RequestId) -> None:
        def act(one: Slot) -> None:
            one.is_generating, one.hold_at, one.round = True, None, None
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
        """Nothing: time here is the test's."""

    def release(self, request: RequestId) -> None:
        if request in self._taken:
            self._taken.remove(request)
            self._commands.append(lambda: self._sequences.__delitem__(request))

    def _command(self, request: RequestId, act: Callable[[Slot], None]) -> None:
        def run() -> None:
            one = self._sequences.get(request)
            if one is not None and not one.is_ended:
                act(one)

        self._commands.append(run)

    # --- what the test does ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Take the commands, compute a chunk for each sequence, draw where all is computed, and report."""
        if self._is_broken:
            return
        commands, self._commands = self._commands, []
        for command in commands:
            command()
        for request, one in self._sequences.items():
            if not one.is_ended:
                self._advance(request, one)
        self.num_steps += 1
        self._report()

    def fail(self, request: RequestId | None) -> None:
        """Report that one sequence, or (None) the whole engine, cannot go on."""
        if request is not None and request in self._sequences:
            self._sequences[request].is_ended = True
        self._is_broken |= request is None
        self._events.append(Failed(request, "out of order", self.info.name if request is None else None))
        self._report()

    def _report(self) -> None:
        if self._events:
            self.reports.append(self._events)
            self._events = []

    def _advance(self, request: RequestId, one: Slot) -> None:
        target = len(one.tokens) if one.is_generating else one.round[1] if one.round else one.num_computed
        if one.awaited is not None:
            target = min(target, one.awaited.limit(one.num_computed, target))
        num_new = min(target - one.num_computed, CHUNK_TOKENS)
        one.num_computed += num_new
        one.num_own += num_new
        self.num_computed += num_new
        if one.awaited is not None:
            self._take_kv(request, one, one.awaited)
        if one.round is not None and one.num_computed == one.round[1]:
            first, end = one.round
            self._events.append(Computed(request, end, end - first, 0.5))
            one.round = (end, len(one.tokens)) if len(one.tokens) > end else None
        if one.is_generating and one.num_computed == len(one.tokens):
            self._draw(request, one)

    def _take_kv(self, request: RequestId, one: Slot, awaited: AwaitedKv) -> None:
        first, problem = one.num_computed, None
        while problem is None and (block := awaited.take(one.num_computed)) is not None:
            if block.data == kv_of(one.tokens, block.kv):
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
        computed, one.num_own = Round(one.num_own, 0.5), 0
        self._events.append(KvImported(request, KvRange(first, one.num_computed), computed, is_last, problem))

    def _draw(self, request: RequestId, one: Slot) -> None:
        token = next_token(one.tokens, one.spec.sampling)
        if token is None:
            self._end(request, one, "stop")
            return
        self._events.append(Generated(request, one.num_output, Token(token, piece(token))))
        one.tokens.append(token)
        self._stop_where_due(request, one)

    def _stop_where_due(self, request: RequestId, one: Slot) -> None:
        if one.num_output >= one.spec.sampling.max_tokens:
            self._end(request, one, "length")
        elif one.hold_at is not None and one.num_output >= one.hold_at:
            self._hold_now(request, one)

    def _hold_now(self, request: RequestId, one: Slot) -> None:
        one.is_generating, one.hold_at = False, None
        self._events.append(Held(request, one.num_output))

    def _end(self, request: RequestId, one: Slot, reason: str) -> None:
        one.is_ended = True
        self._events.append(Ended(request, one.num_output, reason))
