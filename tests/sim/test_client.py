"""A client of the simulator takes the first whole answer, and is over once."""

from godwit.errors import UnavailableError
from godwit.sim.client import AskingClient
from godwit.sim.loop import Loop
from godwit.sim.spec import Ask
from godwit.types import ModelName, RequestId


def _hedged() -> tuple[AskingClient, Loop, list[RequestId], list[AskingClient]]:
    """A client with two replicas; who was cancelled, and how often it was over."""
    loop, cancelled, over = Loop(), list[RequestId](), list[AskingClient]()
    ask = Ask(0.0, ModelName("m"), 1, 1, num_replicas=2)
    return AskingClient(ask, 0, loop, cancelled.append, over.append), loop, cancelled, over


def test_two_replicas_that_end_in_one_instant_are_one_answer() -> None:
    client, loop, cancelled, over = _hedged()
    first, second = client.receivers
    first.finished("stop")
    second.finished("stop")
    assert client.winner == first.request
    assert over == [client]
    while loop.step():
        pass
    assert cancelled == [second.request]


def test_a_replica_that_fails_after_the_answer_does_not_spoil_it() -> None:
    client, _, _, over = _hedged()
    first, second = client.receivers
    first.finished("stop")
    second.failed(UnavailableError("its server is gone"))
    assert client.problem is None
    assert over == [client]


def test_a_request_has_failed_when_all_replicas_have() -> None:
    client, _, _, over = _hedged()
    for receiver in client.receivers:
        assert not over
        receiver.failed(UnavailableError("no room"))
    assert client.problem == "unavailable: no room"
    assert over == [client]
