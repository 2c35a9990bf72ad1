"""What can happen to a move, and what its machines ask their drivers to do."""

from dataclasses import dataclass
from enum import Enum

from godwit.types import Round

# --- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """The source's engine has drawn tokens: there are `num_output` now."""

    num_output: int


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The destination has the KV of the tokens up to output `num_output`."""

    num_output: int
    round: Round


@dataclass(frozen=True, slots=True)
class Stopped:
    """The source's engine holds at `num_output`."""

    num_output: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The other worker declined, abandoned, or its link broke."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The request finished, was cancelled, or its client left."""


@dataclass(frozen=True, slots=True)
class KeepOrdered:
    """The head says: the move is over, the request is the source's."""


@dataclass(frozen=True, slots=True)
class ReleaseOrdered:
    """The head says: the destination's first token has arrived."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; `now` in seconds."""

    now: float


@dataclass(frozen=True, slots=True)
class ResumeArrived:
    """The first round's message: outputs up to `num_output`; `refusal` says why it cannot be taken, if so."""

    num_output: int
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class AppendArrived:
    """More tokens: outputs from `first_index` up to `num_output`."""

    first_index: int
    num_output: int


@dataclass(frozen=True, slots=True)
class CommitArrived:
    """The source has stopped at `num_output`."""

    num_output: int


@dataclass(frozen=True, slots=True)
class KvReady:
    """The destination's engine has the KV up to `num_output`."""

    num_output: int
    round: Round


@dataclass(frozen=True, slots=True)
class AbortOrdered:
    """The head says: free what you hold for this move."""


@dataclass(frozen=True, slots=True)
class DestinationReady:
    """The destination has the model and a slot."""


@dataclass(frozen=True, slots=True)
class DestinationFailed:
    """The destination refused, gave up, or is gone."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceGaveUp:
    """The source carries on with the request."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceStopped:
    """The source handed over."""


@dataclass(frozen=True, slots=True)
class SourceInDoubt:
    """The source handed over and lost the destination."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceGone:
    """The source's worker is gone, or has to let the request go."""

    reason: str = "the source died"


@dataclass(frozen=True, slots=True)
class Adopted:
    """The journal has taken the destination's first new token."""


# --- effects ------------------------------------------------------------------------------------------------


class Do(Enum):
    """Effects without arguments."""

    SEND_RESUME = "send everything so far to the destination"
    SEND_APPEND = "send the tokens drawn since"
    SEND_ABANDON = "tell the destination that the move is over"
    SEND_COMMIT = "hand over: tell the destination, then the head"
    SEND_IN_DOUBT = "ask the head who owns the request"
    SEND_FAILED = "tell the head that the source carries on"
    GENERATE = "let the engine draw"
    FREE = "release the slot and its KV"
    OPEN = "give the tokens to the engine, held"
    APPEND = "give the new tokens to the engine"
    SEND_RESUMED = "tell the source how far the KV is"
    SEND_DECLINED = "tell the source that the move is off"
    SEND_REFUSED = "tell the head that nothing is held any more"
    ADOPT = "own the request: send the tokens that the head may lack, then draw"
    ORDER_MIGRATE = "tell the source to migrate"
    ORDER_ABORT = "tell the destination to free what it holds"
    ORDER_KEEP = "tell the source that the request is its own"
    ORDER_RELEASE = "tell the source to free the KV"
    REVOKE = "the journal refuses the destination from now on"
    FAIL_OVER = "place the request anew from the journal"
    RECORD = "record the outcome"


@dataclass(frozen=True, slots=True)
class HoldAt:
    """Stop the source's engine at `num_output` (None: at once)."""

    num_output: int | None


@dataclass(frozen=True, slots=True)
class Pace:
    """Slow the source's engine by `factor` for this request."""

    factor: float
