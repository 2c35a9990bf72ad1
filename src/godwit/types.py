"""Frozen value types and ids that every layer shares; see docs/glossary.md for the words."""

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, NewType

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

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


class Promise(StrEnum):
    """What a continued request might not keep of the one that would not have moved."""

    SEED = "seed"
    PENALTIES = "penalties"
    GRAMMAR = "grammar"


class Carries(Struct, frozen=True, omit_defaults=True, gc=False):
    """What an engine carries across a move: what it takes up exactly where another one, or itself, was.

    All engines carry the prompt, the output so far, and what follows from these alone. `seed`: the draw for
    output k is Godwit's function of (seed, k), whoever drew the ones before. `penalties`: it is told where
    the prompt ended, so that the output so far counts as output. `grammar`: it follows a grammar or schema
    from where the output stands. `kv`: it gives and takes the KV of ranges.
    """

    seed: bool = True
    penalties: bool = True
    grammar: bool = True
    kv: bool = True


CARRIES_ALL = Carries()

MUST_KEEP = frozenset((Promise.GRAMMAR,))
"""Kept, or there is no continuation: what breaks its grammar is not near the right output, it is wrong."""


def promises(sampling: Sampling, *, has_seed: bool = True) -> tuple[Promise, ...]:
    """What a continuation of such a request must carry to end as if it had not moved.

    Without `has_seed` the client named none: the seed is Godwit's own, and any other draws are as good.
    """
    made = {
        Promise.SEED: has_seed and sampling.temperature > 0,
        # The repetition penalty counts prompt and output alike, so it does not matter where the prompt ended.
        Promise.PENALTIES: bool(sampling.presence_penalty or sampling.frequency_penalty),
        Promise.GRAMMAR: sampling.grammar is not None or sampling.json_schema is not None,
    }
    return tuple(promise for promise, is_made in made.items() if is_made)


def broken_promises(made: Collection[Promise], source: Carries, destination: Carries) -> tuple[Promise, ...]:
    """Which of these promises break when output that `source` has begun goes on at `destination`.

    A seed must be carried at both ends: where only one draws by Godwit's function, the draws do not go on.
    """
    if not made:
        return ()
    kept = {
        Promise.SEED: source.seed and destination.seed,
        Promise.PENALTIES: destination.penalties,
        Promise.GRAMMAR: destination.grammar,
    }
    return tuple(promise for promise in made if not kept[promise])


def both(one: Carries, other: Carries) -> Carries:
    """What the two have in common."""
    return Carries(
        one.seed and other.seed,
        one.penalties and other.penalties,
        one.grammar and other.grammar,
        one.kv and other.kv,
    )


class ModelInfo(Struct, frozen=True, gc=False):
    """A model as one worker can serve it.

    `digest` identifies the checkpoint's content; `context_tokens` is the limit of prompt plus output for one
    request; `device_bytes` is weights plus KV of all slots; `is_loaded` tells whether an instance is up.
    `tier` is the nearest one below the device that has the checkpoint, whose file has `checkpoint_bytes`.
    `declared` is what its engine carries; unset, and not sent, where that is everything.
    """

    name: ModelName
    digest: str
    context_tokens: int
    device_bytes: int
    is_loaded: bool
    has_chat_template: bool
    checkpoint_bytes: int = 0
    tier: Tier = Tier.SSD
    declared: Carries | UnsetType = UNSET

    @property
    def carries(self) -> Carries:
        """What its engine keeps of a request that another one began."""
        return CARRIES_ALL if self.declared is UNSET else self.declared


def declaring(info: ModelInfo, carries: Carries) -> ModelInfo:
    """The same model, served by an engine that carries so much."""
    return replace(info, declared=UNSET if carries == CARRIES_ALL else carries)


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
