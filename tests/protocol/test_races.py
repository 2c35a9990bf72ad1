"""Things that cross on their way, come twice, or come when nobody waits for them any more."""

from godwit.errors import NoFreeSlotError
from godwit.protocol.coordinator import CoordinatorState
from godwit.protocol.messages import Accepted, Rejected, Submit
from godwit.protocol.wire import decode_from_head
from godwit.types import RequestId, WorkerId
from tests.protocol.checks import check_at_rest, settle
from tests.protocol.client import Client
from tests.protocol.situations import (
    committed,
    finishes,
    handed_over,
    in_rounds,
    run_until,
    running_on_a,
    sent,
    two_workers,
)
from tests.protocol.world import HEAD, MODEL, World

A, B = WorkerId("a"), WorkerId("b")


# --- the engine runs ahead of its worker --------------------------------------------------------------------


def test_reports_of_a_sequence_that_is_gone_say_nothing_about_the_next_one() -> None:
    world = World()
    world.join("a")
    client = running_on_a(world)
    for _ in range(3):
        world.nodes[A].step()
    world.link("a")
    world.deliver_all()
    assert world.owner("r1") == "a" and world.nodes[A].has_reports
    finishes(world, client)


def test_a_failure_of_a_sequence_that_is_gone_does_not_end_the_next_one() -> None:
    world = World()
    world.join("a")
    client = running_on_a(world)
    engine = world.nodes[A].instances.engines[MODEL]
    engine.fail(engine.sequences[0])
    world.link("a")
    world.deliver_all()
    world.nodes[A].take_report()
    world.deliver_all()
    assert world.owner("r1") == "a"
    finishes(world, client)


def test_an_engine_that_fails_ends_the_moves_to_it_at_once() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.nodes[B].instances.engines[MODEL].fail(None)
    world.nodes[B].take_report()
    world.deliver_all()
    assert world.coordinator("r1") is None and world.owner("r1") == "a"
    assert world.records[-1].reason == "out of order"
    finishes(world, client)


# --- the head's messages cross the workers' -----------------------------------------------------------------


def test_the_destination_s_first_token_may_come_before_the_source_was_heard_of_at_all() -> None:
    """a's link is slow: its Accepted and tokens come after b's, but the client sees the right order."""
    world = two_workers()
    client = world.start("r1", 28, seed=3)
    world.hold_back("a", "head")
    world.move("r1", "b")
    run_until(world, lambda: world.owner("r1") == "b")
    assert client.num_accepted == 1 and client.ids
    world.let_go("a", "head")
    world.deliver_all()
    assert sent(world, A, HEAD, Accepted)
    finishes(world, client)


def test_a_request_that_is_turned_away_while_it_is_to_move_is_placed_again() -> None:
    world = two_workers()
    client = world.start("r1", 28, seed=3)
    world.hold_back("b", "head")
    world.move("r1", "b")
    submit = decode_from_head(world.queue(HEAD, A)[0] or b"")
    assert isinstance(submit, Submit)
    world.queue(HEAD, A).clear()
    rejected = Rejected(RequestId("r1"), submit.epoch, NoFreeSlotError.code, "no room")
    world.control.on_worker(A, rejected)
    assert world.coordinator("r1") is None and world.records[-1].outcome == "failed"
    world.let_go("b", "head")
    finishes(world, client)


def test_an_interrupt_while_handed_over_frees_the_source_and_leaves_the_request_to_the_destination() -> None:
    world = two_workers()
    client = handed_over(world)
    world.control.requests.interrupt(client.request, "a had to leave")
    world.deliver_all()
    world.thaw()
    world.run(3)
    assert world.owner("r1") == "b" and world.nodes[A].requests.num_running == 0
    finishes(world, client)


def test_an_interrupt_of_a_request_that_has_just_moved_away_does_not_touch_it() -> None:
    world = two_workers()
    client = handed_over_before_the_report(world)
    world.control.requests.interrupt(client.request, "a had to leave")
    world.thaw()
    world.run(2)
    assert world.owner("r1") == "b" and all(one.method != "failover" for one in world.records)
    finishes(world, client)


def handed_over_before_the_report(world: World) -> Client:
    """b's first token is at the head, a's Migrated is not."""
    client = in_rounds(world)
    world.hold_back("a", "head")
    run_until(world, lambda: world.coordinator("r1") is CoordinatorState.ADOPTED)
    return client


def test_a_request_that_ends_at_the_destination_before_the_source_s_report() -> None:
    world = two_workers()
    client = handed_over_before_the_report(world)
    run_until(world, lambda: client.outcome is not None)
    finishes(world, client)


def test_the_destination_dies_before_the_source_s_report() -> None:
    world = two_workers()
    client = handed_over_before_the_report(world)
    world.crash("b")
    finishes(world, client)


def test_in_doubt_and_the_first_token_cross_and_the_head_decides_by_what_came_first() -> None:
    for is_token_first in (True, False):
        world = two_workers()
        client = committed(world)
        world.hold_back("a", "head")
        world.cut("a", "b")
        world.deliver_all()
        world.hold_back("b", "head")
        world.step("b")
        first, second = ("b", "a") if is_token_first else ("a", "b")
        world.let_go(first, "head")
        world.run()
        assert world.owner("r1") == ("b" if is_token_first else "a")
        world.let_go(second, "head")
        finishes(world, client)


def test_a_first_token_that_is_also_the_last() -> None:
    world = two_workers()
    client = world.start("r1", 12, seed=3)
    run_until(world, lambda: len(client.ids) >= 3)
    world.move("r1", "b")
    run_until(world, lambda: client.outcome is not None or world.owner("r1") == "b")
    finishes(world, client)


def test_the_source_fails_while_handed_over() -> None:
    world = two_workers()
    client = handed_over(world)
    engine = world.nodes[A].instances.engines[MODEL]
    engine.fail(engine.sequences[0])
    world.nodes[A].take_report()
    world.deliver_all()
    assert world.coordinator("r1") is CoordinatorState.ORPHANED
    world.thaw()
    run_until(world, lambda: world.owner("r1") == "b")
    finishes(world, client)


def test_the_destination_s_engine_fails_right_after_the_handover() -> None:
    world = two_workers()
    client = committed(world)
    engine = world.nodes[B].instances.engines[MODEL]
    engine.fail(engine.sequences[0])
    world.nodes[B].take_report()
    world.deliver_all()
    assert world.owner("r1") == "a" and world.records[-1].outcome == "failed"
    finishes(world, client)
    assert all(record.method != "failover" for record in world.records)


def test_both_ends_die_while_handed_over() -> None:
    world = two_workers()
    world.join("c")
    client = handed_over(world)
    world.crash("a")
    world.crash("b")
    world.run()
    assert world.owner("r1") == "c"
    finishes(world, client)


def test_two_failovers_in_a_row_are_one_pause() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.crash("a")
    world.deliver_all()
    world.crash("b")
    world.join("c")
    finishes(world, client)
    failovers = [record for record in world.records if record.method == "failover"]
    assert [(one.source, one.destination) for one in failovers] == [("a", "c")]


def test_a_failover_to_the_destination_that_holds_partial_kv() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.nodes[B].step()
    world.crash("a")
    world.deliver_all()
    assert world.owner("r1") == "b"
    assert world.nodes[B].instances.engines[MODEL].free_slots == 1
    finishes(world, client)


def test_a_client_that_leaves_while_its_request_waits_for_a_failover() -> None:
    world = World()
    world.join("a")
    running_on_a(world)
    world.crash("a")
    world.deliver_all()
    assert world.owner("r1") is None
    world.cancel("r1")
    world.join("b")
    settle(world)
    check_at_rest(world)
    assert world.nodes[B].instances.engines[MODEL].num_steps > 0


def test_a_choice_that_fails_may_take_its_sibling_with_it() -> None:
    """The router cancels the other choices of an answer in the call that says that one has failed."""
    world = World(max_failovers=0)
    world.join("a")
    clients = [world.start(name, 28, seed=3) for name in ("r1", "r2")]
    world.run(3)
    clients[0].on_end = lambda: world.cancel("r2")
    world.crash("a")
    world.join("a")
    settle(world)
    check_at_rest(world)
    assert [client.outcome for client in clients] == ["failed", "cancelled"]


def test_a_load_for_a_move_that_was_called_off_stays_for_another_move_that_waits_for_it() -> None:
    world = World()
    world.join("a")
    clients = [world.start(name, 28, seed=3) for name in ("r1", "r2")]
    world.run(3)
    world.join("b", is_loaded=False)
    for name in ("r1", "r2"):
        world.move(name, "b")
    world.deliver_all()
    world.cancel("r1")
    world.deliver_all()
    world.nodes[B].instances.finish_load(MODEL)
    run_until(world, lambda: world.owner("r2") == "b")
    settle(world)
    check_at_rest(world)
    assert clients[1].outcome == "finished"


def test_a_request_that_is_interrupted_while_it_moves_fails_over_for_that_reason() -> None:
    """Its source has not died, and whoever reads the log should not look for a dead server."""
    world = two_workers()
    client = in_rounds(world)
    world.control.ask_drain(A, 0.0)
    settle(world)
    check_at_rest(world)
    assert client.outcome == "finished"
    move, failover = world.records
    assert move.reason == failover.reason == "a: the drain's deadline has come"
