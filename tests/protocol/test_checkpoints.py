"""A stream that has begun goes on with its own checkpoint only, whatever else has the model's name.

Moves are refused by digest (`test_scripts`, 10); these are failovers. `godwit sim chaos` found the first one:
streams went on with the other checkpoint's tokens.
"""

from godwit.protocol.messages import Accepted, Rejected, Submit
from godwit.types import Epoch, RequestId, Sampling, TokenPrompt, WorkerId
from tests.protocol.checks import check_at_rest, settle
from tests.protocol.world import MODEL, World

OTHER = "other weights"


def begun(*others: tuple[str, str]) -> World:
    """A request has tokens from `a`, whose digest is "weights"."""
    world = World()
    world.join("a")
    world.start("r", max_tokens=20, seed=3, ignore_eos=True)
    world.run(3)
    for name, digest in others:
        world.join(name, digest=digest)
    assert world.owner("r") == "a" and world.clients[RequestId("r")].ids
    return world


def test_it_fails_over_to_the_same_checkpoint_only() -> None:
    world = begun(("b", OTHER), ("c", "weights"))
    world.crash("a")
    world.run(2)
    assert world.owner("r") == "c"
    settle(world)
    check_at_rest(world)
    assert world.clients[RequestId("r")].outcome == "finished"


def test_it_waits_for_its_checkpoint() -> None:
    world = begun(("b", OTHER))
    world.crash("a")
    world.run(2)
    world.tick(1.0)
    world.run(2)
    assert world.owner("r") is None
    world.join("c")
    settle(world)
    assert world.clients[RequestId("r")].outcome == "finished"


def test_a_worker_that_comes_while_it_waits_turns_it_away() -> None:
    """The scheduler knows of names only; the worker knows its weights."""
    world = begun()
    world.crash("a")
    world.run(1)
    world.join("b", digest=OTHER)
    for _ in range(3):
        world.run(2)
        world.tick(1.0)
    world.run()
    client = world.clients[RequestId("r")]
    assert client.outcome is None and world.owner("r") is None
    world.tick(40.0)
    assert client.outcome == "failed" and client.error is not None
    assert "another checkpoint has this model's name here" in client.error.message


def test_a_new_request_takes_any_checkpoint() -> None:
    world = World()
    world.join("b", digest=OTHER)
    world.start("r", max_tokens=5)
    world.run(10)
    assert world.clients[RequestId("r")].outcome == "finished"


def test_a_worker_says_which_checkpoint_it_has_and_takes_no_other() -> None:
    world = World()
    world.join("a")
    requests, prompt, sampling = world.nodes[WorkerId("a")].requests, TokenPrompt((1, 2)), Sampling(1, 5)
    sent: list[object] = []
    requests._send_head = sent.append
    requests.on_head(Submit(RequestId("r"), Epoch(1), MODEL, prompt, (), sampling, OTHER))
    requests.on_head(Submit(RequestId("r"), Epoch(2), MODEL, prompt, (), sampling, "weights"))
    rejected, accepted = sent
    assert isinstance(rejected, Rejected) and rejected.epoch == 1
    assert isinstance(accepted, Accepted) and accepted.digest == "weights"
