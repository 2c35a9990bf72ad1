"""The head without its I/O: the request table and the real scheduler tell each other what happens."""

import pytest

from godwit.config import ModelSettings
from godwit.errors import ConflictError, NotFoundError, OverloadedError
from godwit.protocol.coordinator import CoordinatorState
from godwit.protocol.entry import MoveRecord
from godwit.protocol.head import HeadLimits
from godwit.types import RequestId, WorkerId
from tests.protocol.checks import check_at_rest, settle
from tests.protocol.client import Client
from tests.protocol.engine import NUM_VOCAB
from tests.protocol.situations import (
    finishes,
    handed_over,
    in_rounds,
    run_until,
    running_on_a,
    two_workers,
)
from tests.protocol.world import HEAD, MODEL, World

A, B = WorkerId("a"), WorkerId("b")


def drain(world: World, name: str, within_s: float | None = None) -> None:
    world.control.ask_drain(WorkerId(name), within_s)


# --- moves that somebody asks for ---------------------------------------------------------------------------


def test_who_asked_for_a_move_hears_how_it_went() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.move("r1", "b")
    run_until(world, lambda: bool(world.outcomes))
    (outcome,) = world.outcomes
    assert isinstance(outcome, MoveRecord)
    assert (outcome.outcome, outcome.source, outcome.destination) == ("done", "a", "b")
    finishes(world, client)


def test_a_move_without_a_destination_goes_where_the_policy_says() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.move("r1", None)
    run_until(world, lambda: world.owner("r1") == "b")
    finishes(world, client)


def test_a_move_that_cannot_be_is_refused_with_the_reason() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.move("r1", "nobody")
    world.move("unknown", "b")
    world.move("r1", "a")
    world.move("r1", "b")
    world.move("r1", "b")
    kinds = [type(one) for one in world.outcomes]
    assert kinds == [NotFoundError, NotFoundError, ConflictError, ConflictError]
    finishes(world, client)
    assert isinstance(world.outcomes[-1], MoveRecord)


def test_a_move_that_was_asked_for_ends_for_the_asker_when_the_request_does() -> None:
    world = two_workers()
    in_rounds(world)
    world.cancel("r1")
    (outcome,) = world.outcomes
    assert isinstance(outcome, MoveRecord) and outcome.reason == "the request ended"
    settle(world)
    check_at_rest(world)


# --- drains -------------------------------------------------------------------------------------------------


def test_a_drain_moves_all_requests_away_and_the_worker_leaves() -> None:
    world = two_workers()
    clients = [world.start(f"r{i}", 40, seed=671) for i in range(2)]
    world.run(3)
    drain(world, "a")
    run_until(world, lambda: not world.nodes[A].is_up)
    assert all(record.outcome == "done" and record.method == "tokens" for record in world.records)
    settle(world)
    check_at_rest(world)
    assert [client.outcome for client in clients] == ["finished", "finished"]


def test_a_drain_with_nowhere_to_go_waits_for_the_requests_to_end() -> None:
    world = World()
    world.join("a")
    client = running_on_a(world)
    drain(world, "a")
    world.run(3)
    assert world.nodes[A].is_up
    run_until(world, lambda: client.outcome is not None)
    world.run()
    assert client.outcome == "finished" and not world.nodes[A].is_up


def test_a_drain_s_deadline_interrupts_what_is_left_and_it_fails_over() -> None:
    world = World()
    world.join("a")
    client = running_on_a(world)
    drain(world, "a", 5.0)
    world.run()
    world.tick(6.0)
    world.run()
    assert not world.nodes[A].is_up and client.outcome is None
    world.join("b")
    finishes(world, client)
    assert [(record.method, record.model) for record in world.records] == [("failover", MODEL)]


def test_a_drain_s_deadline_in_the_middle_of_a_handover_leaves_the_request_to_the_destination() -> None:
    world = two_workers()
    client = handed_over(world)
    drain(world, "a", 0.0)
    world.deliver_all()
    world.tick(0.5)
    world.thaw()
    finishes(world, client)
    assert not world.nodes[A].is_up
    assert [(record.method, record.outcome) for record in world.records] == [("tokens", "done")]


def test_a_worker_that_is_cut_off_in_its_drain_goes_on_with_it_when_it_is_back() -> None:
    world = World()
    world.join("a")
    client = running_on_a(world)
    drain(world, "a", 60.0)
    world.head_loses("a")
    world.worker_loses_head("a")
    world.link("a")
    assert world.control.members[A].is_draining
    world.join("b")
    finishes(world, client)
    assert not world.nodes[A].is_up
    world.join("a")
    assert not world.control.members[A].is_draining, "a later life is another worker"


# --- a new scheduler ----------------------------------------------------------------------------------------


def test_a_new_scheduler_goes_on_with_drains_and_queued_requests() -> None:
    world = World()
    world.join("a", slots=1)
    clients = [world.start(name, 40, seed=671) for name in ("r1", "r2")]
    world.run(3)
    drain(world, "a")
    world.control.restart_scheduler()
    world.join("b", slots=2)
    settle(world)
    check_at_rest(world)
    assert [client.outcome for client in clients] == ["finished", "finished"]
    assert not world.nodes[A].is_up


def test_a_new_scheduler_places_a_request_that_is_turned_away_just_then() -> None:
    world = two_workers()
    world.nodes[A].instances.engines[MODEL].fail(None)
    client = world.start("r1", 40, seed=671)
    world.control.restart_scheduler()
    world.nodes[A].take_report()
    world.deliver_all()
    finishes(world, client)


def orphaned(world: World) -> Client:
    """a has handed r1 over and died; b has the Commit, and its first token is not there yet."""
    client = handed_over(world)
    world.hold_back("b", HEAD)
    world.crash("a")
    world.deliver("a", HEAD)
    assert world.coordinator("r1") is CoordinatorState.ORPHANED
    return client


def test_a_new_scheduler_leaves_a_request_alone_whose_source_is_gone() -> None:
    world = two_workers()
    client = orphaned(world)
    world.join("c")
    world.control.restart_scheduler()
    world.thaw()
    finishes(world, client)
    assert [record.outcome for record in world.records] == ["done"]


def test_a_model_is_not_removed_under_a_request_whose_source_is_gone() -> None:
    world = two_workers()
    client = orphaned(world)
    world.control.catalog.added[MODEL] = ModelSettings(name=MODEL, path="m.gguf")
    with pytest.raises(ConflictError, match="serves requests"):
        world.control.remove_model(MODEL, lambda _: None)
    world.thaw()
    finishes(world, client)


def test_a_source_that_is_back_before_the_destination_s_first_token_holds_nothing() -> None:
    world = two_workers()
    client = orphaned(world)
    world.join("a", is_loaded=False)
    world.thaw()
    finishes(world, client)


def test_a_source_that_is_back_without_the_model_may_drain_at_once() -> None:
    world = two_workers()
    client = orphaned(world)
    world.join("a", is_loaded=False, slots=1)
    drain(world, "a", 0.0)
    world.tick(0.5)
    world.run(2)
    assert not world.nodes[A].is_up, "it has nothing to wait for"
    world.thaw()
    finishes(world, client)


def test_a_new_scheduler_hears_of_the_end_of_a_move_that_it_never_knew() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.hold_back("a", HEAD)
    run_until(world, lambda: world.coordinator("r1") is CoordinatorState.ADOPTED)
    world.control.restart_scheduler()
    drain(world, "b")
    world.join("c")
    world.thaw()
    finishes(world, client)
    assert all(record.method != "failover" for record in world.records)


# --- limits -------------------------------------------------------------------------------------------------


def test_too_many_requests_are_refused_at_the_door() -> None:
    world = World()
    for number in range(1024):
        world.start(f"r{number}", 1, seed=number % 3)
    with pytest.raises(OverloadedError):
        world.start("one too many", 1)
    world.clients.pop(RequestId("one too many"))
    world.join("a", slots=NUM_VOCAB)
    settle(world)
    check_at_rest(world)


def test_a_request_that_nobody_can_take_in_time_ends_with_an_error() -> None:
    world = World()
    client = world.start("r1")
    for _ in range(4):
        world.tick(10.0)
    assert client.outcome == "failed" and client.error is not None and client.error.status == 503


def test_the_models_of_all_workers_are_listed_once_loaded_ones_first() -> None:
    world = World()
    world.join("a", is_loaded=False)
    world.join("b")
    (info,) = world.control.models()
    assert info.name == MODEL and info.is_loaded


def test_a_request_whose_worker_is_linked_but_draws_nothing_goes_on_elsewhere() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.hold_back("a", HEAD)
    world.tick(HeadLimits().progress_timeout_s + 1)
    world.run(3)
    assert world.owner("r1") == "b"
    world.thaw()
    finishes(world, client)
