"""One request as the head knows it, and the record of each move that it made."""

from dataclasses import dataclass

from msgspec import Struct

from godwit.ports import Sink
from godwit.protocol.coordinator import Coordinator, CoordinatorState
from godwit.protocol.journal import Journal
from godwit.types import KvReport, ModelName, MoveId, Prompt, RequestId, Round, Sampling, WorkerId


class MovePlan(Struct, frozen=True):
    """How a move is to be made: the KV from token `kv_first` on is shipped (None: none is).

    `predicted_s` is from the source's start until the destination has all KV, None where nothing predicts it.
    """

    method: str = "tokens"
    kv_first: int | None = None
    predicted_s: float | None = None


class MoveRecord(Struct, frozen=True):
    """What became of a move (or, with `method` "failover", of an unplanned one).

    `num_output` is the first index that the destination drew; `gap_tokens` had no KV there when the source
    stopped. `pause_s` is the time between the last token before and the first token after, at the router;
    None where no token followed. `duration_s` is from the decision to its end.

    `method` is what was done: "tokens", "kv", "split", "stop" (not live), or with an arrow what it fell back
    to, `kv_problem` says why. `ready_s` is from the source's start until the destination first had all KV
    that there was, `predicted_s` what had been expected of it.
    """

    move: MoveId
    request: RequestId
    source: WorkerId
    destination: WorkerId | None
    method: str
    outcome: str
    reason: str
    rounds: tuple[Round, ...]
    gap_tokens: int
    num_output: int
    pause_s: float | None
    duration_s: float
    kv_tokens: int = 0
    kv_bytes: int = 0
    kv_s: float | None = None
    kv_problem: str | None = None
    predicted_s: float | None = None
    ready_s: float | None = None


@dataclass(slots=True)
class Moving:
    """A planned move in hand: its machine, its two ends, and what is known of it so far."""

    move: MoveId
    source: WorkerId
    destination: WorkerId
    peer_url: str | None
    reason: str
    started_s: float
    machine: Coordinator
    plan: MovePlan
    rounds: tuple[Round, ...] = ()
    gap_tokens: int = 0
    num_output: int = 0
    pause_s: float | None = None
    is_adopted: bool = False
    ready_s: float | None = None
    kv: KvReport | None = None

    @property
    def method(self) -> str:
        """What was done, as `MoveRecord.method` has it."""
        if not self.machine.limits.live:
            return "stop"
        if self.plan.kv_first is not None and self.kv is not None and self.kv.problem is not None:
            return f"{self.plan.method}→tokens"
        return self.plan.method


@dataclass(slots=True)
class Failover:
    """An unplanned move in hand: whom it lost, when, and when its last token had come."""

    source: WorkerId
    started_s: float
    last_token_s: float
    reason: str


@dataclass(slots=True)
class Entry:
    """One request at the head."""

    request: RequestId
    model: ModelName
    prompt: Prompt
    sampling: Sampling
    sink: Sink
    arrived_s: float
    journal: Journal
    moving: Moving | None = None
    failover: Failover | None = None
    last_token_s: float = 0.0
    last_heard_s: float = 0.0
    num_failovers: int = 0
    num_moves: int = 0
    is_dirty: bool = False

    @property
    def is_orphaned(self) -> bool:
        """Whether its source is gone after the handover, so that only the destination may have it."""
        return self.moving is not None and self.moving.machine.state is CoordinatorState.ORPHANED

    @property
    def state(self) -> str:
        """One of "queued", "moving", "running"."""
        if self.journal.owner is None:
            return "queued"
        return "moving" if self.moving is not None else "running"
