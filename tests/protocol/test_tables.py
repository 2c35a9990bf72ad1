"""The three transition tables: total, reachable, and true to what they say of themselves."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import pytest

from godwit.errors import InvariantBrokenError
from godwit.protocol import events as ev
from godwit.protocol.coordinator import COORDINATOR, Coordinator, CoordinatorState
from godwit.protocol.destination import DESTINATION, Destination, DestinationState
from godwit.protocol.machine import Row, Table
from godwit.protocol.source import SOURCE, Source, SourceState, begin_source
from godwit.types import MoveLimits, Round

TABLES: list[Table[Any]] = [SOURCE, DESTINATION, COORDINATOR]
LIMITS = MoveLimits(
    max_rounds=2, shadow_tokens=2, max_shadow_rounds=3, patience_rounds=2, pause_budget_steps=1, timeout_s=1
)
EARLY, LATE = ev.Tick(0.0), ev.Tick(100.0)
MAX_OUTPUT, MAX_ROUNDS = 4, 4

_SO, _DE, _CO = SourceState, DestinationState, CoordinatorState
IGNORED: dict[tuple[Enum, type], str] = {
    (_SO.ROUNDS, ev.Stopped): "the stop of an earlier move, called off meanwhile",
    (_SO.ROUNDS, ev.ReleaseOrdered): "nothing was handed over",
    (_SO.STOPPING, ev.ReleaseOrdered): "nothing was handed over",
    (_SO.HANDED_OVER, ev.Drawn): "the engine holds",
    (_SO.HANDED_OVER, ev.RoundDone): "an answer that crossed the handover",
    (_SO.HANDED_OVER, ev.Stopped): "it has stopped already",
    (_DE.PREPARED, ev.AppendArrived): "it overtook the first round; the next one shows the gap",
    (_DE.PREPARED, ev.CommitArrived): "it overtook the first round; the deadline ends this",
    (_DE.PREPARED, ev.KvReady): "nothing is computed yet",
    (_DE.RESUMING, ev.ResumeArrived): "it came twice",
    (_DE.OWNER, ev.ResumeArrived): "it came twice",
    (_DE.OWNER, ev.AppendArrived): "it came twice",
    (_DE.OWNER, ev.CommitArrived): "it came twice",
    (_DE.OWNER, ev.KvReady): "the report crossed the Commit",
    (_DE.OWNER, ev.PeerGone): "the source is no longer needed",
    (_DE.OWNER, ev.DestinationFailed): "a failed request like any other: RequestFailed tells the head",
    (_DE.OWNER, ev.Tick): "an owner has no deadline",
    (_CO.PREPARING, ev.SourceStopped): "it has not been told to begin",
    (_CO.PREPARING, ev.SourceInDoubt): "it has not been told to begin",
    (_CO.PREPARING, ev.Adopted): "nothing can have been committed",
    (_CO.MOVING, ev.DestinationReady): "it came twice",
    (_CO.HANDED_OVER, ev.DestinationReady): "it came twice",
    (_CO.HANDED_OVER, ev.SourceGaveUp): "it answers a Migrate that came twice",
    (_CO.HANDED_OVER, ev.SourceStopped): "it came twice",
    (_CO.ORPHANED, ev.DestinationReady): "it came twice",
    (_CO.ORPHANED, ev.SourceGaveUp): "from an earlier life of the source",
    (_CO.ORPHANED, ev.SourceStopped): "from an earlier life of the source",
    (_CO.ORPHANED, ev.SourceInDoubt): "from an earlier life of the source",
    (_CO.ORPHANED, ev.SourceGone): "it is gone already",
    (_CO.ADOPTED, ev.DestinationReady): "it came twice",
    (_CO.ADOPTED, ev.SourceGaveUp): "it answers a Migrate that came twice",
    (_CO.ADOPTED, ev.SourceInDoubt): "Release is on its way",
    (_CO.ADOPTED, ev.Adopted): "it is adopted already",
}


def begin_coordinator() -> Coordinator:
    return Coordinator(LIMITS, prepare_by_s=50.0, deadline_s=60.0)


def source_events(s: Source) -> Iterable[object]:
    """Everything that may happen to a source, in few tokens."""
    yield from (EARLY, LATE, ev.PeerGone("x"), ev.RequestEnded(), ev.KeepOrdered(), ev.ReleaseOrdered())
    if s.num_output < MAX_OUTPUT:
        yield ev.Drawn(s.num_output + 1)
    for num_output in range(s.num_resumed, s.num_output + 1 if len(s.rounds) < MAX_ROUNDS else 0):
        yield from (ev.RoundDone(num_output, Round(tokens, 0.1)) for tokens in (1, 9))
    yield ev.Stopped(s.num_output)


def destination_events(d: Destination) -> Iterable[object]:
    """Everything that may happen to a destination, in few tokens."""
    yield from (EARLY, LATE, ev.PeerGone("x"), ev.DestinationFailed("x"), ev.AbortOrdered())
    yield from (ev.ResumeArrived(2), ev.ResumeArrived(2, "another digest"))
    for first in (d.num_known - 1, d.num_known, d.num_known + 1):
        if first + 1 <= MAX_OUTPUT:
            yield ev.AppendArrived(first, first + 1)
    yield from (ev.CommitArrived(d.num_known), ev.CommitArrived(d.num_known + 1))
    yield ev.KvReady(d.num_known, Round(1, 0.1))


def coordinator_events(_: Coordinator) -> Iterable[object]:
    """Everything that may happen to a coordinator."""
    yield from (EARLY, LATE, ev.DestinationReady(), ev.DestinationFailed("x"), ev.SourceGaveUp("x"))
    yield from (ev.SourceStopped(), ev.SourceInDoubt("x"), ev.SourceGone(), ev.Adopted(), ev.RequestEnded())


Possible = Callable[[Any], Iterable[object]]
WALKS: list[tuple[Table[Any], list[Any], Possible]] = [
    (SOURCE, [begin_source(LIMITS, 1, 0.0)[0]], source_events),
    (DESTINATION, [Destination(deadline_s=50.0)], destination_events),
    (COORDINATOR, [begin_coordinator()], coordinator_events),
]


def walk(table: Table[Any], starts: list[Any], possible: Possible) -> set[tuple[Enum, type, Enum]]:
    """All (state, event, next state) that can be met from the start on."""
    seen, met = set(starts), set()
    left = list(starts)
    while left:
        data = left.pop()
        for event in possible(data):
            after, effects = table.step(data, event)
            if (data.state, type(event)) in table.rows:
                met.add((data.state, type(event), after.state))
            else:
                assert after == data and effects == ()
            if after not in seen:
                seen.add(after)
                left.append(after)
    return met


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_state_says_what_it_makes_of_every_event(table: Table[Any]) -> None:
    for state in table.states:
        for event in table.events:
            has_row = (state, event) in table.rows
            if state in table.ends:
                assert not has_row, f"{state} is an end"
            else:
                assert has_row != ((state, event) in IGNORED), f"{state} and {event.__name__}"


def test_only_what_exists_is_ignored() -> None:
    pairs = {(state, event) for table in TABLES for state in table.states for event in table.events}
    assert set(IGNORED) <= pairs


@pytest.mark.parametrize(("table", "starts", "possible"), WALKS, ids=lambda one: getattr(one, "name", None))
def test_every_row_and_every_next_state_is_reached(
    table: Table[Any], starts: list[Any], possible: Possible
) -> None:
    stated = {(state, event, after) for (state, event), row in table.rows.items() for after in row.next}
    assert walk(table, starts, possible) == stated


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_has_its_line_for_the_docs(table: Table[Any]) -> None:
    assert all(row.why for row in table.rows.values())


def test_a_row_that_leads_elsewhere_than_it_says_breaks_the_machine() -> None:
    row = Row(
        (DestinationState.PREPARED,), lambda _d, _e: (Destination(0.0, state=DestinationState.OWNER), ()), "x"
    )
    table = Table(
        "wrong", DestinationState, (ev.Tick,), frozenset(), {(DestinationState.PREPARED, ev.Tick): row}
    )
    with pytest.raises(InvariantBrokenError, match="wrong"):
        table.step(Destination(0.0), EARLY)


def test_a_source_whose_gap_stays_large_gives_up_after_the_allowed_rounds() -> None:
    source, _ = begin_source(LIMITS, 1, 0.0)
    for num_drawn in (4, 8):
        source, _ = SOURCE.step(source, ev.Drawn(num_drawn))
        source, effects = SOURCE.step(source, ev.RoundDone(num_drawn - 3, Round(9, 0.1)))
    assert source.state is SourceState.CARRIED_ON and "did not converge" in source.reason
    assert ev.Do.GENERATE in effects and ev.Do.SEND_ABANDON in effects and ev.Do.SEND_FAILED in effects


def test_a_source_is_paced_while_it_shadows_and_told_in_advance_where_to_stop() -> None:
    source, effects = begin_source(MoveLimits(), 100, 0.0)
    assert effects == (ev.Do.SEND_RESUME,)
    source, _ = SOURCE.step(source, ev.Drawn(102))
    source, effects = SOURCE.step(source, ev.RoundDone(100, Round(100, 1.0)))
    assert effects == (ev.Pace(1.3),)
    source, effects = SOURCE.step(source, ev.RoundDone(102, Round(2, 0.1)))
    assert source.state is SourceState.STOPPING and effects == (ev.HoldAt(103),)
    source, _ = SOURCE.step(source, ev.Drawn(103))
    source, effects = SOURCE.step(source, ev.Stopped(103))
    assert effects == (ev.Do.SEND_COMMIT,) and source.gap_tokens == 1
