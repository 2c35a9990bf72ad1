"""The destination's machine of a move: a reserved slot, rounds of KV, then ownership.

`DESTINATION.step(data, event) -> (data, effects)`; see `source.py`.
"""

from dataclasses import dataclass, replace
from enum import Enum

from godwit.protocol.events import (
    AbortOrdered,
    AppendArrived,
    CommitArrived,
    DestinationFailed,
    Do,
    KvReady,
    PeerGone,
    ResumeArrived,
    Tick,
)
from godwit.protocol.machine import Row, Step, Table


class DestinationState(Enum):
    PREPARED = "prepared"
    RESUMING = "resuming"
    OWNER = "owner"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination's side: `num_known` outputs received. Once OWNER, the request is like any other."""

    deadline_s: float
    num_known: int = 0
    state: DestinationState = DestinationState.PREPARED
    reason: str = ""


def _abandon(d: Destination, reason: str, *effects: Do) -> Step[Destination]:
    return replace(d, state=DestinationState.ABANDONED, reason=reason), (Do.FREE, *effects)


def _resume_arrived(d: Destination, e: ResumeArrived) -> Step[Destination]:
    if e.refusal is not None:
        return _abandon(d, e.refusal, Do.SEND_DECLINED, Do.SEND_REFUSED)
    return replace(d, state=DestinationState.RESUMING, num_known=e.num_output), (Do.OPEN,)


def _append_arrived(d: Destination, e: AppendArrived) -> Step[Destination]:
    if e.first_index > d.num_known:
        return _abandon(d, "tokens were lost on the way", Do.SEND_DECLINED, Do.SEND_REFUSED)
    if e.num_output <= d.num_known:
        return d, ()
    return replace(d, num_known=e.num_output), (Do.APPEND,)


def _commit_arrived(d: Destination, e: CommitArrived) -> Step[Destination]:
    if e.num_output != d.num_known:
        return _abandon(d, "tokens were lost before the handover", Do.SEND_DECLINED, Do.SEND_REFUSED)
    return replace(d, state=DestinationState.OWNER), (Do.ADOPT,)


def _kv_ready(d: Destination, _: KvReady) -> Step[Destination]:
    return d, (Do.SEND_RESUMED,)


def _destination_peer_gone(d: Destination, e: PeerGone) -> Step[Destination]:
    return _abandon(d, e.reason, Do.SEND_REFUSED)


def _destination_failed(d: Destination, e: DestinationFailed) -> Step[Destination]:
    return _abandon(d, e.reason, Do.SEND_DECLINED, Do.SEND_REFUSED)


def _destination_tick(d: Destination, e: Tick) -> Step[Destination]:
    if e.now < d.deadline_s:
        return d, ()
    return _abandon(d, "deadline passed at the destination", Do.SEND_DECLINED, Do.SEND_REFUSED)


def _aborted(d: Destination, _: AbortOrdered) -> Step[Destination]:
    return _abandon(d, "called off by the head")


_P, _RE, _O, _AB = (
    DestinationState.PREPARED,
    DestinationState.RESUMING,
    DestinationState.OWNER,
    DestinationState.ABANDONED,
)

DESTINATION: Table[Destination] = Table(
    "destination",
    DestinationState,
    (ResumeArrived, AppendArrived, CommitArrived, KvReady, PeerGone, DestinationFailed, AbortOrdered, Tick),
    frozenset({_AB}),
    {
        (_P, ResumeArrived): Row((_RE, _AB), _resume_arrived, "the first round, or another checkpoint"),
        (_P, PeerGone): Row((_AB,), _destination_peer_gone, "the source gave up"),
        (_P, DestinationFailed): Row((_AB,), _destination_failed, "the engine failed"),
        (_P, AbortOrdered): Row((_AB,), _aborted, "the head called it off, or the source died"),
        (_P, Tick): Row((_P, _AB), _destination_tick, "the reservation expires"),
        (_RE, AppendArrived): Row(
            (_RE, _AB), _append_arrived, "the source's tokens since; none may be missing"
        ),
        (_RE, CommitArrived): Row((_O, _AB), _commit_arrived, "all there: decode; else decline"),
        (_RE, KvReady): Row((_RE,), _kv_ready, "a round is done"),
        (_RE, PeerGone): Row((_AB,), _destination_peer_gone, "the source died or gave up: clear partial KV"),
        (_RE, DestinationFailed): Row((_AB,), _destination_failed, "the engine failed"),
        (_RE, AbortOrdered): Row((_AB,), _aborted, "the head called it off, or the source died"),
        (_RE, Tick): Row((_RE, _AB), _destination_tick, "no handover by the deadline"),
        (_O, AbortOrdered): Row((_AB,), _aborted, "the head gave the request back to the source"),
    },
)
