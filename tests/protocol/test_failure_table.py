"""The design's failure table, one test a row; docs/architecture.md names them."""

from collections.abc import Callable

import pytest

from godwit.ports import SequenceSpec
from godwit.protocol.coordinator import CoordinatorState
from godwit.protocol.messages import Append, Commit, Migrate, Resume, Resumed
from godwit.types import RequestId, Sampling, WorkerId
from tests.protocol.checks import check_at_rest, settle
from tests.protocol.client import Client
from tests.protocol.engine import FORBIDDEN_SEED
from tests.protocol.situations import (
    LONG,
    LONG_SEED,
    committed,
    finishes,
    handed_over,
    in_rounds,
    run_until,
    running_on_a,
    two_workers,
)
from tests.protocol.world import HEAD, MODEL, NUM_PROMPT, Link, World, decode

A, B = WorkerId("a"), WorkerId("b")
OTHER = RequestId("another head's")


def loading(world: World) -> Client:
    """r1 is to move from a to b, which loads the model for it."""
    client = running_on_a(world)
    world.join("b", is_loaded=False)
    world.move("r1", "b")
    world.deliver_all()
    assert world.nodes[B].instances.loading and world.coordinator("r1") is CoordinatorState.PREPARING
    return client


def one_worker() -> World:
    world = World()
    world.join("a")
    return world


def num_failovers(world: World) -> int:
    return sum(record.method == "failover" for record in world.records)


def test_loading_the_destination_dies() -> None:
    world = one_worker()
    client = loading(world)
    world.crash("b")
    world.deliver_all()
    assert world.coordinator("r1") is None and world.owner("r1") == "a"
    assert not any(isinstance(decode(*one), Migrate) for one in world.delivered), "the source was told"
    finishes(world, client)
    assert num_failovers(world) == 0


def test_loading_the_source_dies() -> None:
    world = one_worker()
    client = loading(world)
    world.join("c")
    world.crash("a")
    world.deliver_all()
    world.nodes[B].instances.finish_load(MODEL)
    assert world.nodes[B].requests.num_moves == 0, "nothing is kept for the move"
    assert world.nodes[B].instances.engines, "only the scheduler unloads"
    assert world.owner("r1") == "c" and num_failovers(world) == 0
    finishes(world, client)
    assert num_failovers(world) == 1


def test_loaded_the_source_dies_before_its_first_round() -> None:
    world = one_worker()
    client = loading(world)
    world.join("c", slots=1)
    world.hold_back(HEAD, "a")
    world.nodes[B].instances.finish_load(MODEL)
    world.deliver_all()
    assert world.coordinator("r1") is CoordinatorState.MOVING
    assert world.nodes[B].requests.num_moves == 1
    world.crash("a")
    world.deliver_all()
    assert world.nodes[B].requests.num_moves == 0 and world.coordinator("r1") is None
    finishes(world, client)
    assert num_failovers(world) == 1


def test_rounds_the_destination_dies() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.run()
    world.crash("b")
    world.deliver_all()
    assert world.owner("r1") == "a" and world.nodes[A].requests.num_moves == 0
    finishes(world, client)
    assert world.records[-1].outcome == "failed" and num_failovers(world) == 0


@pytest.mark.parametrize("why", ["no slot", "another checkpoint", "cannot draw so"])
def test_rounds_the_destination_refuses(why: str) -> None:
    world = one_worker()
    seed = FORBIDDEN_SEED if why == "cannot draw so" else LONG_SEED
    client = running_on_a(world, seed=seed)
    world.join("b", slots=1, digest="other weights" if why == "another checkpoint" else "weights")
    engine = world.nodes[B].instances.engines[MODEL]
    engine.refuses_forbidden_seed = True
    other = SequenceSpec((1,), (), Sampling(seed=1, max_tokens=1))
    if why == "no slot":
        engine.open(OTHER, other)
    world.move("r1", "b")
    world.deliver_all()
    world.run(2)
    assert world.owner("r1") == "a" and world.coordinator("r1") is None
    engine.release(OTHER)
    finishes(world, client)
    assert world.records[-1].outcome == "failed" and num_failovers(world) == 0


@pytest.mark.parametrize("how", ["finished", "cancelled"])
def test_rounds_the_request_ends(how: str) -> None:
    world = two_workers()
    client = in_rounds(world)
    if how == "cancelled":
        world.cancel("r1")
    world.hold_back("b", "a")
    run_until(world, lambda: client.outcome is not None)
    world.deliver_all()
    assert world.nodes[B].requests.num_moves == 0
    assert world.nodes[B].instances.engines[MODEL].free_slots == 2
    settle(world)
    check_at_rest(world)
    assert client.outcome == how


@pytest.mark.parametrize("point", [handed_over, committed])
def test_handed_over_the_destination_dies_before_its_first_token(point: Callable[[World], Client]) -> None:
    world = two_workers()
    client = point(world)
    world.crash("b")
    world.run()
    assert world.owner("r1") == "a" and world.coordinator("r1") is None
    finishes(world, client)
    assert num_failovers(world) == 0 and world.records[-1].outcome == "failed"
    num_computed = world.nodes[A].instances.engines[MODEL].num_computed
    assert num_computed == NUM_PROMPT + LONG, "something was computed or drawn twice"


@pytest.mark.parametrize("point", [handed_over, committed])
def test_handed_over_the_source_dies(point: Callable[[World], Client]) -> None:
    world = two_workers()
    client = point(world)
    world.crash("a")
    world.thaw()
    world.run(2)
    assert world.owner("r1") == "b"
    finishes(world, client)
    assert num_failovers(world) == 0 and world.records[-1].outcome == "done"


@pytest.mark.parametrize("kind", [Resume, Append, Commit, Resumed])
@pytest.mark.parametrize("fault", ["lost", "late", "repeated", "out of order"])
def test_any_time_a_message_is_lost_late_repeated_or_out_of_order(kind: type, fault: str) -> None:
    """Every such message of the move suffers the same."""
    world = two_workers()
    client = running_on_a(world)
    world.move("r1", "b")
    late: list[tuple[Link, bytes]] = []
    for _ in range(40):
        world.deliver_all()
        world.freeze("a", "b")
        world.run()
        for link in ((A, B), (B, A)):
            queue = world.queue(*link)
            for frame in [one for one in queue if one and isinstance(decode(link, one), kind)]:
                if fault in ("lost", "late"):
                    queue.remove(frame)
                if fault == "late":
                    late.append((link, frame))
                if fault == "repeated":
                    queue.append(frame)
                if fault == "out of order":
                    queue.rotate(1)
        world.thaw()
    assert world.owner("r1") in ("a", "b", None)
    for link, frame in late:
        world.deliver_frame(link, frame)
    finishes(world, client)
    assert len(world.records) == 1 and num_failovers(world) == 0
    if fault == "repeated":
        assert world.records[0].outcome == "done"


@pytest.mark.parametrize("point", [loading, in_rounds, handed_over, committed])
def test_any_time_the_scheduler_restarts(point: Callable[[World], Client]) -> None:
    world = one_worker() if point is loading else two_workers()
    client = point(world)
    world.control.restart_scheduler()
    world.thaw()
    world.run(2)
    finishes(world, client)
    assert num_failovers(world) == 0
    assert [record.outcome for record in world.records] == ["done"]


@pytest.mark.parametrize("point", [in_rounds, handed_over, committed])
def test_any_time_the_head_dies(point: Callable[[World], Client]) -> None:
    world = two_workers()
    point(world)
    for name in "ab":
        world.worker_loses_head(name)
    world.queues.clear()
    world.run(2)
    for node in world.nodes.values():
        assert node.requests.num_running == 0 and node.requests.num_moves == 0
        assert all(engine.free_slots == engine.slots for engine in node.instances.engines.values())


@pytest.mark.parametrize("point", [running_on_a, in_rounds, handed_over, committed])
@pytest.mark.parametrize("who", ["a", "b"])
def test_any_time_a_worker_is_partitioned_then_returns(point: Callable[[World], Client], who: str) -> None:
    """It goes on for a while by itself; then it is back, and so are the messages that it had sent."""
    world = two_workers()
    client = point(world)
    world.freeze(who, HEAD)
    world.freeze("a", "b")
    for _ in range(3):
        world.step("a")
        world.step("b")
    world.head_loses(who)
    world.run(2)
    world.worker_loses_head(who)
    world.link(who)
    world.replay_old(who)
    finishes(world, client)
