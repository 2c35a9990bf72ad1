"""Each check fails on what it is there for."""

import pytest
from msgspec.structs import replace

from godwit.errors import EngineError, GodwitError, ModelNotFoundError, UnavailableError
from godwit.ports import SequenceSpec
from godwit.protocol.entry import Entry
from godwit.protocol.messages import Submit, TokenEvent, Tokens
from godwit.scheduling.events import RequestQueued
from godwit.sim.chaos import Chaos
from godwit.sim.checkers import BrokenError
from godwit.sim.network import HEAD
from godwit.sim.situation import Asked, Situation, situation_of
from godwit.types import Epoch, ModelName, RequestId, Sampling, TokenPrompt, WorkerId

A = ModelName("a")
W0, W1 = WorkerId("w0"), WorkerId("w1")
REQUEST = RequestId("r0")


def situation(num_tokens: int = 60) -> Situation:
    """A calm world: two workers that have model `a`, and one long request."""
    any_world = (situation_of(seed, {"move": 1}) for seed in range(1000))
    found = next(one for one in any_world if _loads(one) == [True, True])
    return replace(
        found,
        settings=replace(found.settings, policy="availability", early=None),
        asks=(Asked(0.1, A, 5, num_tokens, 7, ignore_eos=True),),
        faults=(),
        relayed=(),
        lump_tokens=1,
    )


def _loads(one: Situation) -> list[bool]:
    return [A in worker.loaded and worker.slots > 1 for worker in one.cluster.workers]


@pytest.fixture
def chaos() -> Chaos:
    """One in which the request runs."""
    chaos = Chaos(situation())
    chaos.begin()
    chaos.run_until(0.5)
    assert 0 < chaos.clients[REQUEST].num_tokens < 60
    return chaos


def entry_of(chaos: Chaos) -> Entry:
    found = chaos.world.head.control.requests.get(REQUEST)
    assert found is not None
    return found


def test_a_calm_world_is_in_order(chaos: Chaos) -> None:
    chaos.checkers.check_all()
    chaos.settle()
    assert chaos.clients[REQUEST].outcome == "finished"


def test_a_token_twice(chaos: Chaos) -> None:
    client = chaos.clients[REQUEST]
    first = client.num_tokens - 1
    with pytest.raises(BrokenError, match="came after"):
        client.tokens(first, client.expected[first : first + 1], [b""], [])


def test_a_token_left_out(chaos: Chaos) -> None:
    client = chaos.clients[REQUEST]
    first = client.num_tokens + 1
    with pytest.raises(BrokenError, match="came after"):
        client.tokens(first, client.expected[first : first + 1], [b""], [])


def test_another_token(chaos: Chaos) -> None:
    client = chaos.clients[REQUEST]
    first = client.num_tokens
    with pytest.raises(BrokenError, match="not those of the unmoved run"):
        client.tokens(first, [client.expected[first] + 1], [b""], [])


def test_an_end_too_early(chaos: Chaos) -> None:
    with pytest.raises(BrokenError, match="finished with length after"):
        chaos.clients[REQUEST].finished("length")


def test_something_after_the_end(chaos: Chaos) -> None:
    client = chaos.clients[REQUEST]
    client.outcome = "cancelled"
    with pytest.raises(BrokenError, match="after its end"):
        client.failed(UnavailableError("no"))


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("the head is gone; send the request again"),
        UnavailableError("no server could take the request in time: all slots were taken"),
        ModelNotFoundError("no server has the model 'a'; models: b"),
        EngineError("out of order"),
    ],
)
def test_a_failure_for_no_good_reason(chaos: Chaos, error: GodwitError) -> None:
    with pytest.raises(BrokenError, match="for no good reason"):
        chaos.clients[REQUEST].failed(error)


def test_tokens_that_the_client_has_not_got(chaos: Chaos) -> None:
    entry_of(chaos).journal.output_ids.append(1)
    with pytest.raises(BrokenError, match="not all was delivered"):
        chaos.checkers.check_all()


def test_tokens_of_one_who_does_not_own_the_request(chaos: Chaos) -> None:
    entry, client = entry_of(chaos), chaos.clients[REQUEST]
    first = client.num_tokens
    message = Tokens([TokenEvent(REQUEST, Epoch(0), first, client.expected[first : first + 1], [b""])])
    chaos.checkers.arrives(W1, HEAD, message)
    entry.journal.output_ids.append(client.expected[first])
    with pytest.raises(BrokenError, match="does not own"):
        chaos.checkers.was_taken()


def test_an_offer_without_a_move(chaos: Chaos) -> None:
    entry_of(chaos).journal.offer(WorkerId("w9"))
    with pytest.raises(BrokenError, match="offered to w9"):
        chaos.checkers.check_all()


def test_a_slot_that_nobody_holds(chaos: Chaos) -> None:
    engine = chaos.world.workers[W0].instances.drivers[A].engine
    engine.open(RequestId("r9@1"), SequenceSpec((1, 2), (), Sampling(1, 5)))
    with pytest.raises(BrokenError, match="slots are taken"):
        chaos.checkers.check_all()


def test_a_request_whose_slot_is_gone(chaos: Chaos) -> None:
    owner = entry_of(chaos).journal.owner
    assert owner is not None
    chaos.world.workers[owner].instances.drivers[A].engine.release(RequestId(f"{REQUEST}@1"))
    with pytest.raises(BrokenError, match="0 slots are taken"):
        chaos.checkers.check_all()


def test_a_stay_of_a_request_on_two_workers(chaos: Chaos) -> None:
    entry = entry_of(chaos)
    other = W1 if entry.journal.owner == W0 else W0
    order = Submit(REQUEST, entry.journal.epoch, A, TokenPrompt((1, 2)), (), entry.sampling)
    chaos.world.workers[other].requests.on_head(order)
    with pytest.raises(BrokenError, match=r"r0@1 is on w. and on w."):
        chaos.checkers.check_all()


def test_an_epoch_that_nobody_gave(chaos: Chaos) -> None:
    entry = entry_of(chaos)
    other = W1 if entry.journal.owner == W0 else W0
    order = Submit(REQUEST, Epoch(9), A, TokenPrompt((1, 2)), (), entry.sampling)
    chaos.world.workers[other].requests.on_head(order)
    with pytest.raises(BrokenError, match="an epoch that nobody gave it"):
        chaos.checkers.check_all()


def test_more_on_a_device_than_it_has(chaos: Chaos) -> None:
    instances = chaos.world.workers[W0].instances
    instances.add(replace(instances.info(A), name="big", device_bytes=1000))
    instances.put(ModelName("big"))
    with pytest.raises(BrokenError, match=r"w0 holds 10\d\d of"):
        chaos.checkers.check_all()


def test_one_who_waits_where_a_slot_is_free(chaos: Chaos) -> None:
    scheduler = chaos.world.head.control.scheduler
    scheduler._lines.add(RequestQueued(RequestId("r9"), A, 99.0, frozenset(), False), 0.0)
    with pytest.raises(BrokenError, match=r"r9 waits, but w. has a free slot"):
        chaos.checkers.check_all()


def test_a_queue_that_grows(chaos: Chaos) -> None:
    for _ in range(501):
        chaos.world.network.send(W0, W1, b"")
    with pytest.raises(BrokenError, match="501 frames are under way"):
        chaos.checkers.check_all()


def test_a_slot_that_the_books_keep(chaos: Chaos) -> None:
    chaos.settle()
    chaos.world.head.control.scheduler._ledger.promise(REQUEST, W0, A)
    with pytest.raises(BrokenError, match="keeps 1 slots of w0"):
        chaos.checkers.check_at_rest()


def test_a_request_that_is_remembered_for_ever(chaos: Chaos) -> None:
    chaos.settle()
    chaos.world.head.control._moving_loaded.add(REQUEST)
    with pytest.raises(BrokenError, match=r"remembered at Control._moving_loaded.*r0"):
        chaos.checkers.check_at_rest()


def test_an_instance_that_the_books_do_not_know(chaos: Chaos) -> None:
    chaos.settle()
    chaos.world.workers[W0].instances.drivers.pop(A)
    with pytest.raises(BrokenError, match="a on w0: loaded: False"):
        chaos.checkers.check_at_rest()


def test_a_drain_that_does_not_end(chaos: Chaos) -> None:
    chaos.world.head.control.members[W0].is_draining = True
    with pytest.raises(BrokenError, match="no rest after 120 s: w0 is drained but has not left"):
        chaos.settle()


def test_a_request_that_waits_for_ever() -> None:
    chaos = Chaos(situation())
    chaos.begin()
    chaos.run_until(0.05)
    chaos.world.network.delay((HEAD, W0), 0.2)
    chaos.world.network.delay((HEAD, W1), 0.2)
    chaos.run_until(0.2)
    for link in ((HEAD, W0), (HEAD, W1)):
        while chaos.world.network.num_under_way(link):
            chaos.world.network.drop(link, 0)
    with pytest.raises(BrokenError, match="no rest after 120 s: requests at the head"):
        chaos.settle()
