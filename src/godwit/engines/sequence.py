"""What the batching loop knows of one sequence, and the pure choice of what to compute next."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from godwit.engines.runner import Span
from godwit.ports import SequenceSpec
from godwit.protocol.awaiting import AwaitedKv
from godwit.types import RequestId, TokenId

TAIL_TOKENS = 8  # pending tails up to this long ride along with the decodes instead of queueing for the chunk


class Phase(Enum):
    """Held computes known tokens, generating also draws, ended (or failed) does nothing until its release."""

    HELD = auto()
    GENERATING = auto()
    ENDED = auto()


class OpenRound(NamedTuple):
    """A round that is being computed: from `first` computed tokens to `target`, begun at `start_s`."""

    first: int
    target: int
    start_s: float


@dataclass(slots=True, eq=False)
class SequenceState:
    """One sequence in a slot: all known tokens, how many have KV, and what it has been told to do."""

    request: RequestId
    slot: int
    spec: SequenceSpec
    tokens: list[TokenId]
    round: OpenRound | None
    turn: int
    num_computed: int = 0
    phase: Phase = Phase.HELD
    hold_at: int | None = None
    pace: float = 1.0
    not_before_s: float = 0.0
    awaited: AwaitedKv | None = None
    computing_s: float = 0.0  # in passes since the last KV was taken

    @property
    def num_output(self) -> int:
        return len(self.tokens) - len(self.spec.prompt_ids)

    @property
    def target(self) -> int:
        """How many tokens to compute for now: towards KV that is awaited; a held one to its round's end."""
        if self.phase is Phase.ENDED or (self.phase is Phase.HELD and self.round is None):
            return self.num_computed
        goal = self.round.target if self.phase is Phase.HELD and self.round else len(self.tokens)
        return goal if self.awaited is None else self.awaited.limit(self.num_computed, goal)

    @property
    def is_ready_to_draw(self) -> bool:
        return self.phase is Phase.GENERATING and self.num_computed == len(self.tokens)


class Plan(NamedTuple):
    """One pass: the spans, whether a prefill chunk is among them, and how long to wait where there is none.

    `wait_s` None means until a command comes.
    """

    spans: list[tuple[SequenceState, Span]]
    has_chunk: bool
    wait_s: float | None


def plan_step(sequences: Iterable[SequenceState], now_s: float, chunk_tokens: int) -> Plan:
    """All short tails that are due, and at most `chunk_tokens` of prefill from those that wait longest."""
    spans: list[tuple[SequenceState, Span]] = []
    prefilling: list[SequenceState] = []
    wait_s: float | None = None
    for state in sequences:
        pending = state.target - state.num_computed
        if pending > TAIL_TOKENS:
            prefilling.append(state)
        elif pending > 0 and state.not_before_s <= now_s:
            spans.append((state, _span(state, pending)))
        elif pending > 0:
            due_s = state.not_before_s - now_s
            wait_s = due_s if wait_s is None else min(wait_s, due_s)
    room = chunk_tokens
    for state in sorted(prefilling, key=lambda s: s.turn):
        if room <= 0:
            break
        count = min(room, state.target - state.num_computed)
        spans.append((state, _span(state, count)))
        room -= count
    return Plan(spans, has_chunk=bool(prefilling), wait_s=wait_s)


def _span(state: SequenceState, count: int) -> Span:
    start, end = state.num_computed, state.num_computed + count
    return Span(state.slot, start, state.tokens[start:end], keep_logits=end == len(state.tokens))
