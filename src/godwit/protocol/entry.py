"""One request as the head knows it, and the record of each move that it made."""

from dataclasses import dataclass

from msgspec import Struct

from godwit.ports import Sink
from godwit.protocol.coordinator import Coordinator, CoordinatorState
from godwit.protocol.journal import Journal
from godwit.types import (
    CARRIES_ALL,
    Carries,
    KvPlan,
    KvReport,
    ModelName,
    MoveId,
    Phases,
    Promise,
    Prompt,
    RequestId,
    Round,
    Sampling,
    WorkerId,
    broken_promises,
    promises,
)


class MovePlan(Struct, frozen=True):
    """How a move is to be made: how KV is shipped, None where only tokens are.

    `predicted` says how long its parts will take, None where nothing predicts it. `carries` is what the
    destination's engine declares.
    """

    method: str = "tokens"
    kv: KvPlan | None = None
    predicted: Phases | None = None
    carries: Carries = CARRIES_ALL


class MoveRecord(Struct, frozen=True):
    """What became of a move (or, with `method` "failover", of an unplanned one).

    `num_output` is the first index that the destination drew; `gap_tokens` had no KV there when the source
    stopped. `pause_s` is the time between the last token before and the first token after, at the router;
    None where no token followed. `duration_s` is from the decision to its end.

    `method` is what was done: "tokens", "kv", "split", "failover", or with an arrow what it fell back to,
    `kv_problem` says why; with `is_live` False the source had stopped first. `context_tokens` were known when
    its destination was ready, `kv_tokens` of them (and of those drawn since) were shipped, in `kv_bytes`. The
    destination computed `computed_tokens` before it first had all KV. `predicted` and `actual` are the parts'
    seconds. Where the destination could not continue exactly, `broken` says what it did not keep.
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
    kv_problem: str | None = None
    model: ModelName = ModelName("")
    context_tokens: int = 0
    computed_tokens: int = 0
    is_live: bool = True
    predicted: Phases | None = None
    actual: Phases | None = None
    broken: tuple[Promise, ...] = ()


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
    context_tokens: int
    rounds: tuple[Round, ...] = ()
    gap_tokens: int = 0
    num_output: int = 0
    pause_s: float | None = None
    is_adopted: bool = False
    ready_s: float | None = None
    kv: KvReport | None = None
    broken: tuple[Promise, ...] = ()

    @property
    def actual(self) -> Phases:
        """What its parts took, as far as that is known."""
        ready_s = self.ready_s if self.machine.limits.live else self.pause_s
        computed = self.computed
        transfer_s = None if self.kv is None else self.kv.seconds
        return Phases(
            transfer_s, computed.seconds if computed.tokens and computed.seconds > 0 else None, ready_s
        )

    @property
    def computed(self) -> Round:
        """What the destination computed before it first had all; no seconds where nobody told them."""
        if self.kv is not None and self.kv.problem is None:
            return self.kv.computed
        # One whose source had stopped has no rounds: it goes on as soon as it has all.
        return self.rounds[0] if self.rounds else Round(self.context_tokens, 0.0)

    @property
    def method(self) -> str:
        """What was done, as `MoveRecord.method` has it."""
        if self.plan.kv is not None and self.kv is not None and self.kv.problem is not None:
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
    """One request at the head. `expected_tokens` is what its client guessed for its output, if it did.

    `has_seed`: its client named the seed. `is_computing`: its owner was given it, and has begun, but has not
    drawn a token yet. `digest` is that of the checkpoint which it has begun with, empty before. `drawn_by` is
    what the engine carries that drew its latest output, `placed` what that of its owner does, until it has
    drawn.
    """

    request: RequestId
    model: ModelName
    prompt: Prompt
    sampling: Sampling
    sink: Sink
    arrived_s: float
    journal: Journal
    expected_tokens: int | None = None
    has_seed: bool = True
    moving: Moving | None = None
    failover: Failover | None = None
    last_token_s: float = 0.0
    last_heard_s: float = 0.0
    num_failovers: int = 0
    num_moves: int = 0
    was_preempted: bool = False
    is_dirty: bool = False
    is_computing: bool = False
    digest: str = ""
    drawn_by: Carries = CARRIES_ALL
    placed: Carries | None = None

    @property
    def promises(self) -> tuple[Promise, ...]:
        """What its continuations must keep."""
        return promises(self.sampling, has_seed=self.has_seed)

    def drawn(self, carries: Carries, *, is_begun: bool) -> tuple[Promise, ...]:
        """An engine that carries so much has begun to draw; what that breaks of output that there was, which
        the sink is told. `is_begun`: there was some."""
        broken = broken_promises(self.promises, self.drawn_by, carries) if is_begun else ()
        self.drawn_by, self.placed = carries, None
        if broken:
            self.sink.approximate(broken)
        return broken

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
