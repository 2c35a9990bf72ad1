"""Frozen value types and ids that every layer shares; see docs/glossary.md for the words."""

from enum import StrEnum
from typing import Annotated, NewType

from msgspec import Meta, Struct

RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
ModelName = NewType("ModelName", str)
MoveId = NewType("MoveId", str)
Epoch = NewType("Epoch", int)
TokenId = int


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How the next token is drawn; counts are over the whole request, however often it moves.

    `seed` decides every draw: the draw for output index k is a function of (seed, k) alone.
    `top_k` 0, `top_p` 1, `min_p` 0 switch the filter off; `temperature` 0 is greedy.
    `presence_penalty` and `frequency_penalty` count output tokens, `repetition_penalty` prompt and output.
    `grammar` is GBNF with the rule `root`; `json_schema` is JSON text ("{}" allows any object).
    `num_logprobs` is the number of alternatives reported a token, None for no logprobs.
    """

    seed: int
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    json_schema: str | None = None
    num_logprobs: int | None = None
    ignore_eos: bool = False


class TextPrompt(Struct, frozen=True, tag="text"):
    """A prompt that the worker tokenizes as it stands."""

    text: str


class ChatMessage(Struct, frozen=True):
    """One turn of a conversation."""

    role: str
    content: str
    name: str | None = None


class ChatPrompt(Struct, frozen=True, tag="chat"):
    """A conversation that the worker renders with the model's chat template, then tokenizes."""

    messages: tuple[ChatMessage, ...]


class TokenPrompt(Struct, frozen=True, tag="ids"):
    """A prompt that is token ids already."""

    ids: tuple[TokenId, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


class Alternative(Struct, frozen=True, array_like=True, gc=False):
    """One candidate for an output position: its id, bytes and natural-log probability."""

    id: TokenId
    text: bytes
    logprob: float


class Token(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One output token: its id, its bytes (maybe part of a character), and its logprobs where asked for.

    `alternatives` is empty, or the chosen token first and then the most likely ones, best first.
    """

    id: TokenId
    text: bytes
    alternatives: tuple[Alternative, ...] = ()


class Round(Struct, frozen=True, array_like=True, gc=False):
    """One resume during a move: tokens whose KV the destination computed, and the seconds it took."""

    tokens: int
    seconds: float


class Phases(Struct, frozen=True, gc=False):
    """Seconds of a move's parts, each as predicted or as measured; None where there was no such part.

    `transfer_s`: from the source's start until the last of the shipped KV has arrived. `compute_s`: what the
    destination computes of the rest before it first has all. `ready_s`: from the source's start until the
    destination first has the KV of all tokens that are known then; both of the above run within it.
    """

    transfer_s: float | None = None
    compute_s: float | None = None
    ready_s: float | None = None


class KvRange(Struct, frozen=True, array_like=True, gc=False):
    """The tokens [first, last) of a context, prompt and output."""

    first: int
    last: int


class KvPlan(Struct, frozen=True, array_like=True, gc=False):
    """How a move ships KV: in blocks of `block_tokens`, each a range of its own that starts at a multiple.

    With a `share` of 0 they go in order, and the destination waits for them. Else they go from the end of the
    context backwards, and the destination computes from its front until the two meet: at each step this share
    of what is still missing, which is what it is expected to do by then. `ships_tail`: in order, what was
    drawn meanwhile is shipped too, as long as that closes the gap.
    """

    share: float
    block_tokens: Annotated[int, Meta(ge=1)]
    ships_tail: bool = True


class KvOffer(Struct, frozen=True, array_like=True):
    """KV that the source of a move would ship, laid out as `Engine.kv_layout` says; see `KvPlan`."""

    kv: KvRange
    layout: str
    share: Annotated[float, Meta(ge=0, le=1)]
    block_tokens: Annotated[int, Meta(ge=1)]


class KvReport(Struct, frozen=True, array_like=True):
    """What became of the KV that a move was to ship, as the destination saw it.

    It took the KV of `num_tokens`. The last of the `num_bytes` that arrived did so `seconds` after the offer.
    `computed` is what it computed until then. With a `problem` it computes what it had not taken.
    """

    num_tokens: int = 0
    num_bytes: int = 0
    seconds: float | None = None
    computed: Round = Round(0, 0.0)
    problem: str | None = None


class Tier(StrEnum):
    """Where a checkpoint is on a server, from the nearest to the farthest."""

    DEVICE = "device"
    DRAM = "dram"
    SSD = "ssd"
    REMOTE = "remote"


class LoadRecord(Struct, frozen=True, array_like=True, gc=False):
    """A load that is over: `num_bytes` of checkpoint came from `tier` to the device.

    `queue_s` were spent waiting for other loads on the same path, `seconds` on the load itself. One from
    `device` has moved nothing: the model was loaded already, or is loaded still.
    """

    tier: Tier
    num_bytes: int
    queue_s: float
    seconds: float


class ModelInfo(Struct, frozen=True, gc=False):
    """A model as one worker can serve it.

    `digest` identifies the checkpoint's content; `context_tokens` is the limit of prompt plus output for one
    request; `device_bytes` is weights plus KV of all slots; `is_loaded` tells whether an instance is up.
    `tier` is the nearest one below the device that has the checkpoint, whose file has `checkpoint_bytes`.
    """

    name: ModelName
    digest: str
    context_tokens: int
    device_bytes: int
    is_loaded: bool
    has_chat_template: bool
    checkpoint_bytes: int = 0
    tier: Tier = Tier.SSD


class MoveLimits(Struct, frozen=True):
    """When rounds end: see docs/architecture.md, "Rounds".

    A round of at most `shadow_tokens` is a shadow round; `max_rounds` bounds the larger ones and
    `max_shadow_rounds` these. While shadowing, the source takes `pace` times its usual time for a token, and
    every `patience_rounds` one token more is an acceptable gap, up to `pause_budget_steps`. `timeout_s`
    bounds each phase. With `live` False the source stops before anything travels (the
    baseline of `godwit bench pause`).
    """

    max_rounds: int = 8
    pause_budget_steps: float = 2.0
    shadow_tokens: int = 4
    max_shadow_rounds: int = 64
    patience_rounds: int = 6
    pace: float = 1.3
    timeout_s: float = 60.0
    live: bool = True
