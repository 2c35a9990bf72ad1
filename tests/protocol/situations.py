"""Worlds brought to a certain point of a move, and what must come out of them."""

from collections.abc import Callable

from godwit.costs.choice import MoveCosts
from godwit.costs.known import Constants
from godwit.protocol.coordinator import CoordinatorState
from godwit.protocol.message import Message
from godwit.types import MoveLimits, WorkerId
from tests.protocol.checks import check_always, check_at_rest, settle
from tests.protocol.client import Client
from tests.protocol.world import LIMITS, Link, World, decode

MAX_ROUNDS = 60
LONG, LONG_SEED = 48, 671
"""Tokens of a request that lasts longer than any move; with this seed nothing ends it before."""


def two_workers(costs: Constants | None = None) -> World:
    """Workers a and b with the model loaded."""
    world = World()
    if costs is not None:
        world.control.costs = MoveCosts(costs)
    world.join("a")
    world.join("b")
    return world


def running_on_a(world: World, num_tokens: int = 3, seed: int = LONG_SEED) -> Client:
    """Request r1, with some tokens out, on a."""
    client = world.start("r1", LONG, seed)
    run_until(world, lambda: len(client.ids) >= num_tokens)
    assert world.owner("r1") == "a"
    return client


def run_until(world: World, is_there: Callable[[], bool]) -> None:
    """Let things run until something is so; fail where it never is."""
    for _ in range(MAX_ROUNDS):
        if is_there():
            return
        world.run()
        check_always(world)
    raise AssertionError("it never came to that")


def in_rounds(world: World) -> Client:
    """r1 is moving from a to b; the first round has come, none is done."""
    client = running_on_a(world)
    world.move("r1", "b")
    world.deliver_all()
    assert world.coordinator("r1") is CoordinatorState.MOVING
    return client


def handed_over(world: World, limits: MoveLimits = LIMITS) -> Client:
    """a has handed r1 over; its Commit is still on its way to b."""
    client = running_on_a(world)
    world.move("r1", "b", limits)
    world.deliver_all()
    for _ in range(MAX_ROUNDS):
        if world.coordinator("r1") is CoordinatorState.HANDED_OVER:
            return client
        # The last Append and the Commit are held back, and everything before them is not.
        world.let_go("a", "b")
        world.deliver_all()
        world.hold_back("a", "b")
        world.run()
    raise AssertionError("a never handed over")


def committed(world: World) -> Client:
    """b has the Commit and owns r1 by its own lights; the head has heard of no token of it."""
    client = handed_over(world)
    world.let_go("a", "b")
    world.deliver_all()
    return client


def finishes(world: World, client: Client) -> None:
    """The request ends as if nothing had happened, and nothing leaks."""
    settle(world)
    check_at_rest(world)
    assert client.outcome == "finished", client.error


def sent(world: World, sender: WorkerId, receiver: WorkerId, kind: type[Message]) -> tuple[Link, bytes]:
    """The last frame of that kind that was delivered between the two."""
    link = (sender, receiver)
    return link, [f for one, f in world.delivered if one == link and isinstance(decode(link, f), kind)][-1]
