"""What the recorder takes for predicted, and what for true."""

import pytest

from godwit.costs.accuracy import ErrorSummary
from godwit.costs.startup import StartupTimes
from godwit.protocol.entry import Entry, MoveRecord
from godwit.scheduling.eventlog import EventLog
from godwit.scheduling.recorder import Recorder
from godwit.types import MoveId, Phases, RequestId, WorkerId
from tests.protocol.situations import finishes, run_until, running_on_a, two_workers
from tests.protocol.world import MODEL, World

A, B, R1 = WorkerId("a"), WorkerId("b"), RequestId("r1")
TOKEN_S = 0.1


def _taught() -> StartupTimes:
    """A token takes 0.1 s on a, and a resume on b 10 ms a token."""
    times = StartupTimes()
    for tokens in (100, 200, 400) * 3:
        times.learn_resume(B, MODEL, tokens, None, tokens / 100)
        times.learn_tokens(A, MODEL, tokens, tokens * TOKEN_S)
    return times


def _entry() -> Entry:
    world = two_workers()
    running_on_a(world)
    entry = world.control.requests.get(R1)
    assert entry is not None
    return entry


def _record(outcome: str, ready_s: float) -> MoveRecord:
    actual = Phases(ready_s=ready_s)
    common = (MoveId("m1"), R1, A, B, "tokens", outcome, "", (), 0, 0, None, 9.0)
    return MoveRecord(*common, model=MODEL, context_tokens=200, actual=actual)


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_a_move_that_is_made_shows_how_far_its_prediction_was_off(outcome: str) -> None:
    times, now = _taught(), [0.0]
    recorder = Recorder(times, EventLog(10), lambda: now[0])
    recorder.accepted(R1, A, 100)
    now[0] = 5.0
    # It has 150 tokens, and draws 50 more until b has loaded the model.
    recorder.move_began(_entry(), B, load_s=5.0)
    now[0] = 15.0
    recorder.move_ended(_record(outcome, ready_s=2.5), 250)
    seen = times.errors()
    if outcome == "failed":
        assert seen == {}
    else:
        assert seen == {"resume": ErrorSummary(1, 0.5, 0.5, 0.5)}
    # It is over: an end that comes late counts for nothing.
    recorder.move_ended(_record("done", ready_s=2.5), 250)
    assert times.errors() == seen


def test_the_wait_of_a_request_that_has_lost_its_server_is_not_decoding() -> None:
    times, now = _taught(), [0.0]
    recorder = Recorder(times, EventLog(10), lambda: now[0])
    entry = _entry()
    entry.journal.disown()
    before = times.token_s(A, MODEL)
    for _ in range(20):
        recorder.accepted(R1, A, entry.journal.num_tokens - 1)
        now[0] += 60.0
        recorder.ended(entry, is_whole=False)
    assert times.token_s(A, MODEL) == before


def test_the_context_of_a_move_is_what_there_was_when_the_model_had_been_loaded() -> None:
    world = World()
    world.join("a")
    world.join("b", is_loaded=False)
    client = running_on_a(world)
    world.move("r1", "b")
    world.deliver_all()
    assert world.nodes[B].instances.loading
    before = len(client.ids)
    for _ in range(5):
        world.step("a")
        world.nodes[A].take_report()
        world.deliver_all()
    drawn = len(client.ids) - before
    assert drawn > 0
    run_until(world, lambda: world.owner("r1") == "b")
    finishes(world, client)
    (record,) = world.records
    assert record.outcome == "done", record.reason
    assert record.context_tokens >= 7 + before + drawn
