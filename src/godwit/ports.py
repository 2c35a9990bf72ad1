"""Protocols that the core needs and the outer layers implement: Clock, Engine, Instances, Sink."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from godwit.errors import GodwitError
from godwit.types import (
    Alternative,
    ChatMessage,
    KvOffer,
    KvRange,
    ModelInfo,
    ModelName,
    Promise,
    RequestId,
    Round,
    Sampling,
    Token,
    TokenId,
)


class Clock(Protocol):
    """Seconds that never go back; only differences mean anything."""

    def __call__(self) -> float: ...


class Generated(Struct, frozen=True, gc=False):
    """The engine drew output `index` of a request."""

    request: RequestId
    index: int
    token: Token


class Ended(Struct, frozen=True, gc=False):
    """The engine ended a request after `num_output` tokens: reason "stop" (end of sequence) or "length".

    The end-of-sequence token itself is not an output token. The sequence's slot stays taken until `release`.
    """

    request: RequestId
    num_output: int
    reason: str


class Computed(Struct, frozen=True, gc=False):
    """A held sequence has the KV of all `num_tokens` tokens (prompt and output) of its present round.

    `round_tokens` of them were computed in this round, in `seconds` from its start.
    """

    request: RequestId
    num_tokens: int
    round_tokens: int
    seconds: float


class Held(Struct, frozen=True, gc=False):
    """A sequence stopped at the token boundary `num_output`; its KV stays."""

    request: RequestId
    num_output: int


class Failed(Struct, frozen=True, gc=False):
    """The engine cannot go on with one request, or (None) with any request of `model`."""

    request: RequestId | None
    message: str
    model: ModelName | None = None
    code: str = "engine_error"


class KvExported(Struct, frozen=True, gc=False):
    """The KV of a range that was asked for, as `data` that only an engine of the same layout reads.

    Where it could not be had, `problem` says why and `data` is empty.
    """

    request: RequestId
    kv: KvRange
    data: bytearray
    problem: str | None = None


class KvImported(Struct, frozen=True, gc=False):
    """A sequence has taken awaited KV: that of the range `kv`, which is empty where none was needed.

    Before that it `computed` tokens of its own since the last such event or its start. With a `problem` it
    computes what is missing. `is_last`: nothing is awaited any more. `num_bytes` came another way than
    `import_kv`'s data (None: they were that data).
    """

    request: RequestId
    kv: KvRange
    computed: Round
    is_last: bool
    problem: str | None = None
    num_bytes: int | None = None


EngineEvent = Generated | Ended | Computed | Held | Failed | KvExported | KvImported
OnStep = Callable[[Sequence[EngineEvent]], None]


class SequenceSpec(Struct, frozen=True):
    """All that an engine needs to continue a request exactly: prompt, output so far, sampling."""

    prompt_ids: tuple[TokenId, ...]
    output_ids: tuple[TokenId, ...]
    sampling: Sampling


class Engine(Protocol):
    """One loaded model that serves up to `slots` sequences by continuous batching, in a thread of its own.

    Commands return at once and take effect at the next token boundary; commands for one request keep their
    order. What happened comes through `on_step`, called in the engine's thread once a step with all events.
    A sequence is either *held* (KV of the known tokens is computed, nothing is drawn) or *generating*.
    A command for an unknown request is ignored: it may have ended in the same instant.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def slots(self) -> int: ...

    @property
    def kv_layout(self) -> str | None:
        """What must be the same at both ends, beside the checkpoint, for KV to be understood: the engine's
        build, the KV's type and its arrangement; None where ranges of KV cannot be exported."""
        ...

    @property
    def ships_whole_kv(self) -> bool:
        """Whether what it exports of a context is of use only in order and from its start on: no split then,
        and few large ranges."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps done so far."""
        ...

    @property
    def step_started_s(self) -> float | None:
        """When the step under way began, its commands and draws included (monotonic); None between steps.

        Later where the engine is known to have got on within it.
        """
        ...

    @property
    def free_slots(self) -> int: ...

    def start(self, on_step: OnStep) -> None:
        """Start the thread."""
        ...

    def close(self) -> None:
        """Stop the thread and free the model; returns when both are done."""
        ...

    def tokenize(self, text: str, *, add_special: bool) -> list[TokenId]:
        """Token ids of `text`; `add_special` adds the model's start token where it wants one.

        ContextTooLongError where the text could fit in no context of this engine; then it takes no time.
        Special tokens written in `text` are recognised: callers pass rendered templates or plain prompts.
        """
        ...

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt text of a conversation, ready for the answer; BadRequestError without a template."""
        ...

    def piece(self, token: TokenId) -> bytes:
        """The bytes that a token stands for; special tokens give b""."""
        ...

    def check(self, sequence: SequenceSpec) -> None:
        """Raise BadRequestError (ids out of the vocabulary, bad grammar, …) or ContextTooLongError."""
        ...

    def try_out(self, sampling: Sampling) -> None:
        """BadRequestError where a grammar needs too much; blocks for seconds, and may run in any thread."""
        ...

    def open(self, request: RequestId, sequence: SequenceSpec, awaits: KvOffer | None = None) -> None:
        """Take a slot and start computing KV, held; NoFreeSlotError where all slots are taken.

        KV that it `awaits` comes by `import_kv`, in the order that `KvPlan` tells; so does how much of it is
        computed meanwhile. It ends before the last token, whose pass makes the logits.
        """
        ...

    def export_kv(self, request: RequestId, kv: KvRange) -> None:
        """Copy the KV of a range at the next token boundary; KvExported follows, and the request goes on.

        An ended sequence is exported too, as long as it has its slot.
        """
        ...

    def import_kv(self, request: RequestId, kv: KvRange, data: bytearray) -> None:
        """Give a sequence a block of the KV that it awaits; KvImported follows once blocks were taken.

        It is taken when all tokens before it have KV, and dropped where it comes too late. `data` must not
        change after this. Ignored where nothing is awaited (any more).
        """
        ...

    def stop_awaiting(self, request: RequestId) -> None:
        """No more blocks will come: take those that are here and compute the rest; KvImported follows."""
        ...

    def append(self, request: RequestId, ids: Sequence[TokenId]) -> None:
        """Add output tokens drawn elsewhere to a held sequence; only their KV is computed."""
        ...

    def generate(self, request: RequestId) -> None:
        """Draw tokens from here on; cancels a pending `hold`."""
        ...

    def hold(self, request: RequestId, at_output: int | None = None) -> None:
        """Stop drawing once `at_output` output tokens exist (None: now), keep the KV; Held follows."""
        ...

    def pace(self, request: RequestId, factor: float) -> None:
        """Let each token of this request take `factor` (≥ 1) times its usual time."""
        ...

    def release(self, request: RequestId) -> None:
        """Forget the sequence and free its slot; no event of it follows this call's effect."""
        ...


class Instances(Protocol):
    """The models loaded on one worker; an engine that is here has been started."""

    def get(self, model: ModelName) -> Engine | None:
        """The engine that serves `model`, None where it is not loaded, or about to be unloaded.

        Requests that it has go on with it in that case; it takes nothing new.
        """
        ...

    def load(self, model: ModelName, done: Callable[[Engine | GodwitError], None]) -> None:
        """Load `model`; `done` is called later, in the worker's loop, with the engine or what went wrong.

        One that is about to be unloaded stays.
        """
        ...

    def unload(self, model: ModelName) -> None:
        """Drop the instance as soon as it serves nothing; harmless where it is not loaded."""
        ...


class Sink(Protocol):
    """Where one request's output goes; the table calls it from the event loop and never waits for it.

    Order: `accepted` once, any number of `tokens` with `flush` after one or several of them, then exactly
    one of `finished` and `failed` (which may also come first). Moves and failovers are invisible here, but
    for `approximate`, which may come any number of times after `accepted`.
    """

    def accepted(self, prompt_ids: Sequence[TokenId]) -> None:
        """The prompt's token ids are known."""
        ...

    def tokens(
        self,
        first_index: int,
        ids: Sequence[TokenId],
        texts: Sequence[bytes],
        alternatives: Sequence[tuple[Alternative, ...]],
    ) -> None:
        """Outputs `first_index` and on, each index exactly once and in order; buffer them until `flush`."""
        ...

    def approximate(self, broken: Sequence[Promise]) -> None:
        """The tokens that follow are of an engine that could not continue the request exactly."""
        ...

    def flush(self) -> None:
        """All that is pending now has been given: write it out."""
        ...

    def finished(self, reason: str) -> None:
        """The request ended: "stop" or "length"."""
        ...

    def failed(self, error: GodwitError) -> None:
        """The request cannot be completed."""
        ...
