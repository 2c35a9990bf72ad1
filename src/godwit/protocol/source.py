"""The source's machine of a move: rounds while it decodes, the stop at a token boundary, the handover.

`SOURCE.step(data, event) -> (data, effects)`. It knows counts and states only; its driver holds the tokens.
"""

from dataclasses import dataclass, replace
from enum import Enum

from godwit.protocol.events import (
    Do,
    Drawn,
    HoldAt,
    KeepOrdered,
    Pace,
    PeerGone,
    ReleaseOrdered,
    RequestEnded,
    RoundDone,
    Stopped,
    Tick,
)
from godwit.protocol.machine import Row, Step, Table
from godwit.types import MoveLimits, Round


class SourceState(Enum):
    ROUNDS = "rounds"
    STOPPING = "stopping"
    HANDED_OVER = "handed over"
    CARRIED_ON = "carried on"
    RELEASED = "released"
    ENDED = "request ended"


@dataclass(frozen=True, slots=True)
class Source:
    """The source's side. `num_output` drawn, `num_resumed` of them have KV at the destination."""

    limits: MoveLimits
    deadline_s: float
    num_output: int
    num_resumed: int = 0
    state: SourceState = SourceState.ROUNDS
    rounds: tuple[Round, ...] = ()
    num_shadow_rounds: int = 0
    gap_tokens: int = 0
    is_pacing: bool = False
    reason: str = ""

    @property
    def gap(self) -> int:
        """Tokens whose KV the destination still lacks."""
        return self.num_output - self.num_resumed


def begin_source(limits: MoveLimits, num_output: int, now: float) -> Step[Source]:
    """A move starts at its source: the first round goes out, or (not live) the engine stops first."""
    source = Source(limits, now + limits.timeout_s, num_output)
    if limits.live:
        return source, (Do.SEND_RESUME,)
    return replace(source, state=SourceState.STOPPING), (HoldAt(None),)


def _drawn(s: Source, e: Drawn) -> Step[Source]:
    is_new = e.num_output > s.num_output
    return replace(s, num_output=e.num_output), (Do.SEND_APPEND,) if is_new and s.limits.live else ()


def _round_done(s: Source, e: RoundDone) -> Step[Source]:
    is_shadow = e.round.tokens <= s.limits.shadow_tokens
    s = replace(
        s,
        num_resumed=max(s.num_resumed, e.num_output),
        rounds=(*s.rounds, e.round),
        num_shadow_rounds=s.num_shadow_rounds + is_shadow,
    )
    if s.state is SourceState.STOPPING:
        return s, ()
    # The longer shadowing fails to close the gap, the larger a gap is good enough, up to the budget.
    allowed_gap = min(int(s.limits.pause_budget_steps), s.num_shadow_rounds // s.limits.patience_rounds)
    if s.gap <= allowed_gap:
        # One token more is being drawn at this moment: stopping after it costs no wait.
        return replace(s, state=SourceState.STOPPING), (HoldAt(s.num_output + 1),)
    num_large = len(s.rounds) - s.num_shadow_rounds
    if num_large >= s.limits.max_rounds or s.num_shadow_rounds >= s.limits.max_shadow_rounds:
        return _carry_on(s, f"did not converge: {s.gap} tokens behind after {len(s.rounds)} rounds")
    if s.gap <= s.limits.shadow_tokens and not s.is_pacing:
        return replace(s, is_pacing=True), (Pace(s.limits.pace),)
    return s, ()


def _carry_on(s: Source, reason: str) -> Step[Source]:
    after = replace(s, state=SourceState.CARRIED_ON, reason=reason)
    return after, (Pace(1.0), Do.GENERATE, Do.SEND_ABANDON, Do.SEND_FAILED)


def _stopped(s: Source, e: Stopped) -> Step[Source]:
    after = replace(
        s, state=SourceState.HANDED_OVER, num_output=e.num_output, gap_tokens=e.num_output - s.num_resumed
    )
    return after, (Do.SEND_COMMIT,) if s.limits.live else (Do.SEND_RESUME, Do.SEND_COMMIT)


def _source_peer_gone(s: Source, e: PeerGone) -> Step[Source]:
    return _carry_on(s, e.reason)


def _source_tick(s: Source, e: Tick) -> Step[Source]:
    return _carry_on(s, "deadline passed at the source") if e.now >= s.deadline_s else (s, ())


def _source_kept(s: Source, _: KeepOrdered) -> Step[Source]:
    return _carry_on(s, "called off by the head")


def _source_ended(s: Source, _: RequestEnded) -> Step[Source]:
    return replace(s, state=SourceState.ENDED, reason="the request ended"), (Do.SEND_ABANDON,)


def _in_doubt(s: Source, e: PeerGone) -> Step[Source]:
    return replace(s, reason=e.reason), (Do.SEND_IN_DOUBT,)


def _in_doubt_tick(s: Source, e: Tick) -> Step[Source]:
    if e.now < s.deadline_s:
        return s, ()
    after = replace(s, deadline_s=e.now + s.limits.timeout_s, reason="no word from the destination")
    return after, (Do.SEND_IN_DOUBT,)


def _taken_back(s: Source, _: KeepOrdered) -> Step[Source]:
    after = replace(s, state=SourceState.CARRIED_ON, reason="taken back after the handover")
    return after, (Pace(1.0), Do.GENERATE, Do.SEND_ABANDON)


def _released(s: Source, _: ReleaseOrdered) -> Step[Source]:
    return replace(s, state=SourceState.RELEASED), (Do.FREE,)


_R, _S, _H = SourceState.ROUNDS, SourceState.STOPPING, SourceState.HANDED_OVER
_ON, _GONE, _END = SourceState.CARRIED_ON, SourceState.RELEASED, SourceState.ENDED

SOURCE: Table[Source] = Table(
    "source",
    SourceState,
    (Drawn, RoundDone, Stopped, PeerGone, RequestEnded, KeepOrdered, ReleaseOrdered, Tick),
    frozenset({_ON, _GONE, _END}),
    {
        (_R, Drawn): Row((_R,), _drawn, "the source keeps decoding"),
        (_R, RoundDone): Row((_R, _S, _ON), _round_done, "the gap shrinks, closes, or never will"),
        (_R, PeerGone): Row((_ON,), _source_peer_gone, "the destination died or declined"),
        (_R, KeepOrdered): Row((_ON,), _source_kept, "the head called it off"),
        (_R, Tick): Row((_R, _ON), _source_tick, "no progress by the deadline"),
        (_R, RequestEnded): Row((_END,), _source_ended, "normal end; the destination abandons"),
        (_S, Drawn): Row((_S,), _drawn, "the last token"),
        (_S, RoundDone): Row((_S,), _round_done, "the destination is closer"),
        (_S, Stopped): Row((_H,), _stopped, "at the boundary: hand over"),
        (_S, PeerGone): Row((_ON,), _source_peer_gone, "the destination died or declined"),
        (_S, KeepOrdered): Row((_ON,), _source_kept, "the head called it off"),
        (_S, Tick): Row((_S, _ON), _source_tick, "no progress by the deadline"),
        (_S, RequestEnded): Row((_END,), _source_ended, "normal end; the destination abandons"),
        (_H, ReleaseOrdered): Row((_GONE,), _released, "the destination's first token arrived"),
        (_H, KeepOrdered): Row((_ON,), _taken_back, "the destination died first: take it back"),
        (_H, PeerGone): Row((_H,), _in_doubt, "only the head knows who owns it"),
        (_H, Tick): Row((_H,), _in_doubt_tick, "silence: ask the head"),
        (_H, RequestEnded): Row((_END,), _source_ended, "the client left meanwhile"),
    },
)
