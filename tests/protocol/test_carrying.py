"""Whose draws a continuation goes on from decides whether it is approximate. The engines here are all exact
in truth; what one of them declares is changed."""

from godwit.protocol.model_messages import ModelChanged
from godwit.types import Carries, Promise, RequestId, WorkerId, declaring
from tests.protocol.checks import settle
from tests.protocol.client import Client
from tests.protocol.situations import finishes, run_until, running_on_a, two_workers
from tests.protocol.world import LIMITS, MODEL, World

SEED = (Promise.SEED,)


def declares(world: World, name: str, carries: Carries) -> None:
    info = world.control.members[WorkerId(name)].models[MODEL]
    world.control.on_worker(WorkerId(name), ModelChanged(declaring(info, carries)))


def seeded() -> tuple[World, Client]:
    """r1 runs on a; b does not carry seeds."""
    world = two_workers()
    declares(world, "b", Carries(seed=False))
    client = running_on_a(world)
    client.may_be_approximate = True
    return world, client


def forced(world: World, to: str) -> None:
    world.control.ask_move(
        RequestId("r1"), WorkerId(to), LIMITS, world.outcomes.append, "tokens", is_forced=True
    )
    run_until(world, lambda: world.owner("r1") == to and not world.coordinator("r1"))


def test_there_and_back_breaks_the_seed_twice() -> None:
    """Back on a, its draws would go on from where b's own ended."""
    world, client = seeded()
    forced(world, "b")
    assert client.broken == [SEED]
    forced(world, "a")
    assert [record.broken for record in world.records] == [SEED, SEED]
    assert client.broken == [SEED, SEED]
    finishes(world, client)


def test_a_move_that_comes_to_nothing_breaks_nothing() -> None:
    world, client = seeded()
    world.control.ask_move(
        RequestId("r1"), WorkerId("b"), LIMITS, world.outcomes.append, "tokens", is_forced=True
    )
    world.crash("b")
    settle(world)
    assert [record.broken for record in world.records] == [()]
    assert client.broken == [] and client.outcome == "finished"


def test_an_owner_that_never_drew_breaks_nothing() -> None:
    """a dies, b is given the request and dies too; c goes on from what a drew."""
    world, client = seeded()
    world.crash("a")
    world.deliver_all()
    assert world.owner("r1") == "b"
    world.join("c")
    world.crash("b")
    settle(world)
    (record,) = world.records
    assert (record.method, record.destination, record.broken) == ("failover", "c", ())
    assert client.broken == [] and client.outcome == "finished"


def test_a_failover_to_who_does_not_carry_it_says_so_and_the_next_one_too() -> None:
    world, client = seeded()
    world.crash("a")
    num_tokens = len(client.ids)
    run_until(world, lambda: len(client.ids) > num_tokens)
    world.join("c")
    world.crash("b")
    settle(world)
    assert [(record.destination, record.broken) for record in world.records] == [("b", SEED), ("c", SEED)]
    assert client.broken == [SEED, SEED] and client.outcome == "finished"


def test_a_request_that_begins_anew_breaks_nothing() -> None:
    """Its first server dies before it has drawn."""
    world = two_workers()
    declares(world, "b", Carries(seed=False))
    client = world.start("r1", 10)
    world.deliver("head", "a")
    world.crash("a")
    settle(world)
    assert client.outcome == "finished" and not client.broken
