"""Every message between head and workers and between workers, those about models apart; wire.py encodes them.

A link delivers messages in order or breaks; after a break both ends forget the link's moves, and the head
fails its requests over. All messages may still be handled late or twice: each names its move or epoch.
"""

from typing import Annotated

from msgspec import Meta, Struct

from godwit.protocol.message import Message
from godwit.protocol.model_messages import ModelOrder, ModelReport
from godwit.types import (
    Alternative,
    Epoch,
    KvOffer,
    KvPlan,
    KvRange,
    KvReport,
    ModelInfo,
    ModelName,
    MoveId,
    MoveLimits,
    Prompt,
    RequestId,
    Round,
    Sampling,
    Tier,
    Token,
    TokenId,
    WorkerId,
)

# --- worker to head ---------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of a worker. `incarnation` fences an earlier life of the same worker.

    Workers dial `peer_url`, None: they cannot, and get `emulated_bytes_per_s` at most; `slots` are a model's.
    `emulated_tiers` are the bandwidths of tiers that are slowed on purpose, in bytes/s. `loading` are
    the models of which a load is under way.
    """

    worker: WorkerId
    incarnation: int
    slots: int
    device_bytes: int
    models: tuple[ModelInfo, ...]
    peer_url: str | None
    emulated_bytes_per_s: float | None = None
    emulated_tiers: tuple[tuple[Tier, float], ...] = ()
    dram_bytes: int = 0
    loading: tuple[ModelName, ...] = ()


class Alive(Message, frozen=True):
    """The worker's heartbeat; `is_stalled` where an engine has been in one step for too long."""

    is_stalled: bool


class Accepted(Message, frozen=True):
    """The worker has a slot for the request; `prompt_ids` is what its prompt became, told once.

    `digest` is that of the checkpoint which computes it.
    """

    request: RequestId
    epoch: Epoch
    prompt_ids: tuple[TokenId, ...]
    digest: str = ""


class Rejected(Message, frozen=True):
    """The worker will not run the request: an error code and message of `godwit.errors`."""

    request: RequestId
    epoch: Epoch
    code: str
    message: str


class TokenEvent(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Output `first_index` and on of one request, from the owner of `epoch`.

    `texts[i]` are the bytes of `ids[i]`; `alternatives` is empty or has one tuple a token (see `Token`).
    `finish` ends the request after these tokens: "stop" or "length".
    """

    request: RequestId
    epoch: Epoch
    first_index: Annotated[int, Meta(ge=0)]
    ids: list[TokenId]
    texts: list[bytes]
    finish: Annotated[str, Meta(pattern="^(stop|length)$")] | None = None
    alternatives: tuple[tuple[Alternative, ...], ...] = ()


class Tokens(Message, frozen=True):
    """All that one engine step made: one message, however many requests."""

    events: list[TokenEvent]


class RequestFailed(Message, frozen=True):
    """The engine cannot go on with a request that it owned."""

    request: RequestId
    epoch: Epoch
    code: str
    message: str


class Prepared(Message, frozen=True):
    """The destination has the model loaded and a slot reserved for the move."""

    move: MoveId


class Refused(Message, frozen=True):
    """The destination will not take the move, or gave it up; it holds nothing for it any more."""

    move: MoveId
    reason: str


class KvTaken(Message, frozen=True):
    """What became of the KV of a move, from its destination."""

    move: MoveId
    report: KvReport


class MoveFailed(Message, frozen=True):
    """The source gave the move up and carries on with the request."""

    move: MoveId
    reason: str
    rounds: tuple[Round, ...]


class Migrated(Message, frozen=True):
    """The source stopped at output `num_output`, having told the destination to continue.

    `gap_tokens` is how many tokens' KV the destination still lacked when the source stopped; `ready_s` after
    the move's start it had had the KV of all that were known then, None where it had not.
    """

    move: MoveId
    num_output: int
    gap_tokens: int
    rounds: tuple[Round, ...]
    ready_s: float | None = None


class InDoubt(Message, frozen=True):
    """The source of `epoch` handed over and then lost the destination: may it take the request back?"""

    move: MoveId
    request: RequestId
    epoch: Epoch
    reason: str


class Left(Message, frozen=True):
    """The worker is leaving on purpose, and no longer holds any request."""


# --- head to worker ---------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """Answer to Hello: how often to send Alive."""

    heartbeat_s: float


class Submit(Message, frozen=True):
    """Run a request, from its start or (failover) after `output_ids`; Accepted or Rejected follows.

    One that was accepted before goes on with that checkpoint only: its `digest`, else empty.
    """

    request: RequestId
    epoch: Epoch
    model: ModelName
    prompt: Prompt
    output_ids: tuple[TokenId, ...]
    sampling: Sampling
    digest: str = ""


class Stop(Message, frozen=True):
    """Forget a request in every epoch up to `epoch`, and free its slot at once."""

    request: RequestId
    epoch: Epoch


class Prepare(Message, frozen=True):
    """Reserve a slot for a move (load the model where missing); Prepared or Refused follows.

    `epoch` is what the destination's token events carry once it owns the request.
    """

    move: MoveId
    request: RequestId
    epoch: Epoch
    model: ModelName
    source: WorkerId
    timeout_s: float


class Migrate(Message, frozen=True):
    """Move a request to `destination`, which is prepared; `journaled` output tokens are safe at the head.

    With `kv` its KV is to be shipped too.
    """

    move: MoveId
    request: RequestId
    epoch: Epoch
    destination: WorkerId
    peer_url: str | None
    journaled: int
    limits: MoveLimits
    kv: KvPlan | None = None


class AbortMove(Message, frozen=True):
    """To the destination: the move is over, free what it holds; it does not own the request."""

    move: MoveId


class Keep(Message, frozen=True):
    """To the source: the move is over and the request is still yours; carry on, or take it back."""

    move: MoveId


class Release(Message, frozen=True):
    """To the source: the destination's first token has arrived; free the KV."""

    move: MoveId


class Leave(Message, frozen=True):
    """The worker is drained: it may stop."""

    reason: str


# --- between workers, directly or relayed by the head -----------------------------------------------------


class Resume(Message, frozen=True):
    """The first round: everything the destination needs to continue the request.

    With `kv` the source offers the KV of a range, KvWanted or KvDone follows; `kv_problem` is why it does not
    although it should.
    """

    move: MoveId
    request: RequestId
    model: ModelName
    digest: str
    prompt_ids: tuple[TokenId, ...]
    output: tuple[Token, ...]
    sampling: Sampling
    journaled: int
    kv: KvOffer | None = None
    kv_problem: str | None = None


class Append(Message, frozen=True):
    """Tokens drawn since: outputs `first_index` and on."""

    move: MoveId
    first_index: int
    output: tuple[Token, ...]


class Commit(Message, frozen=True):
    """The request is the destination's from output `num_output` on."""

    move: MoveId
    num_output: int


class Abandon(Message, frozen=True):
    """The source gave the move up; the destination frees what it holds."""

    move: MoveId
    reason: str


class Resumed(Message, frozen=True):
    """The destination has the KV up to output `num_output`; the round had `tokens` and took `seconds`."""

    move: MoveId
    num_output: int
    tokens: int
    seconds: float


class Declined(Message, frozen=True):
    """The destination does not go on with the move; it holds nothing for it."""

    move: MoveId
    reason: str


class KvWanted(Message, frozen=True):
    """The destination wants the KV, and has `num_bytes` of it: send on, as far as the window goes."""

    move: MoveId
    num_bytes: int


class KvPart(Message, frozen=True):
    """Bytes from `offset` on of the `total` of the block `kv`; its last part has the digest.

    Never relayed by the head.
    """

    move: MoveId
    kv: KvRange
    offset: int
    total: int
    data: memoryview
    digest: bytes


class KvEnd(Message, frozen=True):
    """The source has sent all the KV that it is going to, or (with a `problem`) all that it can."""

    move: MoveId
    problem: str | None = None


class KvDone(Message, frozen=True):
    """The destination needs no (more) KV."""

    move: MoveId


class PeerHello(Message, frozen=True):
    """First frame of a peer link: who dials."""

    worker: WorkerId
    incarnation: int


PeerMessage = Resume | Append | Commit | Abandon | Resumed | Declined | KvWanted | KvEnd | KvDone


class Relayed(Message, frozen=True):
    """A peer message through the head: to `peer` on the way up, from `peer` on the way down."""

    peer: WorkerId
    message: PeerMessage


FromWorker = (
    Hello
    | Alive
    | ModelReport
    | Accepted
    | Rejected
    | Tokens
    | RequestFailed
    | Prepared
    | Refused
    | MoveFailed
    | Migrated
    | KvTaken
    | InDoubt
    | Left
    | Relayed
)
FromHead = (
    Welcome | ModelOrder | Submit | Stop | Prepare | Migrate | AbortMove | Keep | Release | Leave | Relayed
)
FromPeer = PeerHello | PeerMessage | KvPart
