"""The head's machine of a move: prepare, let the two ends work, decide who owns the request when one is lost.

`COORDINATOR.step(data, event) -> (data, effects)`; see `source.py`.
"""

from dataclasses import dataclass, replace
from enum import Enum

from godwit.protocol.events import (
    Adopted,
    DestinationFailed,
    DestinationReady,
    Do,
    RequestEnded,
    SourceGaveUp,
    SourceGone,
    SourceInDoubt,
    SourceStopped,
    Tick,
)
from godwit.protocol.machine import Row, Step, Table
from godwit.types import MoveLimits


class CoordinatorState(Enum):
    PREPARING = "preparing"
    MOVING = "moving"
    HANDED_OVER = "handed over"
    ORPHANED = "handed over, source gone"
    ADOPTED = "adopted"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The head's side of a move: ready by `prepare_by_s`, over by `deadline_s`."""

    limits: MoveLimits
    prepare_by_s: float
    deadline_s: float
    state: CoordinatorState = CoordinatorState.PREPARING
    reason: str = ""


def _fail(c: Coordinator, reason: str, *effects: Do) -> Step[Coordinator]:
    return replace(c, state=CoordinatorState.FAILED, reason=reason), (Do.REVOKE, *effects, Do.RECORD)


def _fail_over(c: Coordinator, reason: str, *effects: Do) -> Step[Coordinator]:
    after, first = _fail(c, reason, *effects)
    return after, (*first, Do.FAIL_OVER)


def _destination_ready(c: Coordinator, _: DestinationReady) -> Step[Coordinator]:
    return replace(c, state=CoordinatorState.MOVING), (Do.ORDER_MIGRATE,)


def _never_started(c: Coordinator, e: DestinationFailed) -> Step[Coordinator]:
    return _fail(c, e.reason)


def _called_off(c: Coordinator, e: DestinationFailed | SourceInDoubt) -> Step[Coordinator]:
    return _fail(c, e.reason, Do.ORDER_ABORT, Do.ORDER_KEEP)


def _source_gave_up(c: Coordinator, e: SourceGaveUp) -> Step[Coordinator]:
    return _fail(c, e.reason, Do.ORDER_ABORT)


def _source_gone(c: Coordinator, e: SourceGone) -> Step[Coordinator]:
    return _fail_over(c, e.reason, Do.ORDER_ABORT)


def _coordinator_ended(c: Coordinator, _: RequestEnded) -> Step[Coordinator]:
    return _fail(c, "the request ended", Do.ORDER_ABORT)


def _preparing_tick(c: Coordinator, e: Tick) -> Step[Coordinator]:
    return (
        _fail(c, "the destination was not ready in time", Do.ORDER_ABORT)
        if e.now >= c.prepare_by_s
        else (c, ())
    )


def _moving_tick(c: Coordinator, e: Tick) -> Step[Coordinator]:
    if e.now < c.deadline_s:
        return c, ()
    return _fail(c, "deadline passed at the head", Do.ORDER_ABORT, Do.ORDER_KEEP)


def _source_stopped(c: Coordinator, _: SourceStopped) -> Step[Coordinator]:
    return replace(c, state=CoordinatorState.HANDED_OVER), ()


def _adopted_early(c: Coordinator, _: Adopted) -> Step[Coordinator]:
    return replace(c, state=CoordinatorState.ADOPTED), (Do.ORDER_RELEASE,)


def _adopted(c: Coordinator, _: Adopted) -> Step[Coordinator]:
    return replace(c, state=CoordinatorState.DONE), (Do.ORDER_RELEASE, Do.RECORD)


def _done(c: Coordinator, _: object) -> Step[Coordinator]:
    return replace(c, state=CoordinatorState.DONE), (Do.RECORD,)


def _adopted_tick(c: Coordinator, e: Tick) -> Step[Coordinator]:
    return _done(c, e) if e.now >= c.deadline_s else (c, ())


def _orphaned(c: Coordinator, _: SourceGone) -> Step[Coordinator]:
    return replace(c, state=CoordinatorState.ORPHANED), ()


def _both_gone(c: Coordinator, e: DestinationFailed) -> Step[Coordinator]:
    return _fail_over(c, f"source and destination died: {e.reason}")


def _orphaned_tick(c: Coordinator, e: Tick) -> Step[Coordinator]:
    if e.now < c.deadline_s:
        return c, ()
    return _fail_over(c, "no token from the destination in time", Do.ORDER_ABORT)


_PR, _M, _HO, _OR, _AD, _D, _F = tuple(CoordinatorState)

COORDINATOR: Table[Coordinator] = Table(
    "coordinator",
    CoordinatorState,
    (
        DestinationReady,
        DestinationFailed,
        SourceGaveUp,
        SourceStopped,
        SourceInDoubt,
        SourceGone,
        Adopted,
        RequestEnded,
        Tick,
    ),
    frozenset({_D, _F}),
    {
        (_PR, DestinationReady): Row(
            (_M,), _destination_ready, "loaded, slot reserved: the source may begin"
        ),
        (_PR, DestinationFailed): Row((_F,), _never_started, "died or refused; the source never notices"),
        (_PR, SourceGaveUp): Row((_F,), _source_gave_up, "its worker had turned the request away"),
        (_PR, SourceGone): Row((_F,), _source_gone, "abort, fail over; what was loaded for this stays"),
        (_PR, RequestEnded): Row((_F,), _coordinator_ended, "nothing left to move"),
        (_PR, Tick): Row((_PR, _F), _preparing_tick, "loading took too long"),
        (_M, SourceStopped): Row((_HO,), _source_stopped, "handed over; no token of the destination yet"),
        (_M, Adopted): Row((_AD,), _adopted_early, "its token was faster than the source's report"),
        (_M, DestinationFailed): Row((_F,), _called_off, "died or declined: the source carries on"),
        (_M, SourceGaveUp): Row((_F,), _source_gave_up, "did not converge, or lost the destination"),
        (_M, SourceInDoubt): Row((_F,), _called_off, "no token yet: the source takes it back"),
        (_M, SourceGone): Row((_F,), _source_gone, "fenced, then failed over"),
        (_M, RequestEnded): Row((_F,), _coordinator_ended, "normal end; the destination abandons"),
        (_M, Tick): Row((_M, _F), _moving_tick, "too long: the source carries on"),
        (_HO, Adopted): Row((_D,), _adopted, "the route has swapped; the source may free its KV"),
        (_HO, DestinationFailed): Row((_F,), _called_off, "the source takes it back"),
        (_HO, SourceInDoubt): Row((_F,), _called_off, "no token yet: the source takes it back"),
        (_HO, SourceGone): Row((_OR,), _orphaned, "nothing: it is no longer the owner"),
        (_HO, RequestEnded): Row((_F,), _coordinator_ended, "the client left in the pause"),
        (_HO, Tick): Row((_HO, _F), _moving_tick, "no token in time: the source takes it back"),
        (_OR, Adopted): Row((_D,), _done, "the destination goes on"),
        (_OR, DestinationFailed): Row((_F,), _both_gone, "only the journal is left: fail over"),
        (_OR, RequestEnded): Row((_F,), _coordinator_ended, "the client left in the pause"),
        (_OR, Tick): Row((_OR, _F), _orphaned_tick, "no token in time: fail over"),
        (_AD, SourceStopped): Row((_D,), _done, "the source's report is here"),
        (_AD, SourceGone): Row((_D,), _done, "the report is lost, the move is not"),
        (_AD, DestinationFailed): Row((_D,), _done, "a failover of its own"),
        (_AD, RequestEnded): Row((_D,), _done, "the request ended at the destination"),
        (_AD, Tick): Row((_AD, _D), _adopted_tick, "the report never came"),
    },
)
