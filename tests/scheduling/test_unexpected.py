"""Reports that the books did not expect: models loaded by themselves, removed, or moves that end late."""

from godwit.config import ModelSettings
from godwit.protocol.message import Message
from godwit.protocol.model_messages import ModelChanged, ModelRemoved
from godwit.scheduling import events
from godwit.scheduling.catalog import Answers, Catalog
from godwit.scheduling.events import MoveRequested, Reject, RequestAccepted
from godwit.types import ModelInfo, ModelName, RequestId, WorkerId
from tests.scheduling.build import Story, info, load, move, start, unload

TO_S2 = [load("s2", "d"), move("r", "s1", "s2", "makes room for c")]


def big(name: str, num_bytes: int, *, is_loaded: bool = False) -> ModelInfo:
    return info(name, is_loaded=is_loaded, device_bytes=num_bytes)


def two_servers(*others: ModelInfo) -> Story:
    """`d` is busy on s1, which has 100 bytes, and can move to s2."""
    story = Story("live_migration")
    story.join("s1", big("d", 60, is_loaded=True), *others, running=["r"])
    story.join("s2", big("d", 60))
    story.tell(RequestAccepted(RequestId("r"), 100))
    return story


def test_a_claim_begins_on_a_worker_that_holds_more_than_it_should() -> None:
    """An instance that was to leave has stayed, as after 30 s of serving."""
    story = two_servers(big("c", 30), big("x", 30, is_loaded=True), big("y", 30))
    assert story.queue("q", model="y") == [unload("s1", "x"), load("s1", "y")]
    story.changed("s1", big("x", 30, is_loaded=True))
    assert story.queue("p", model="x") == [start("p", "s1")]
    assert story.queue("new", model="c") == TO_S2


def test_a_claim_is_given_up_where_the_worker_has_used_the_room_by_itself() -> None:
    story = two_servers(big("c", 60), big("x", 60))
    assert story.queue("new", model="c") == TO_S2
    story.changed("s1", big("x", 60, is_loaded=True))
    story.changed("s2", big("d", 60, is_loaded=True))
    decisions = story.moved("r", "s2")
    assert decisions == [unload("s1", "d"), unload("s1", "x"), load("s1", "c")]
    assert story.changed("s1", big("c", 60, is_loaded=True)) == [start("new", "s1")]


def test_a_model_that_is_claimed_for_is_removed() -> None:
    story = two_servers(big("c", 60))
    assert story.queue("new", model="c") == TO_S2
    (decision,) = story.tell(events.ModelRemoved(WorkerId("s1"), ModelName("c")))
    assert isinstance(decision, Reject)
    assert story.scheduler.snapshot().workers[WorkerId("s1")].claimed_bytes == 0


def test_the_end_of_an_earlier_move_is_no_end_of_this_one() -> None:
    story = Story()
    story.join("s1", info(), running=["r"])
    story.join("s2", info())
    story.tell(MoveRequested(RequestId("r"), WorkerId("s2"), "asked for"))
    assert story.moved("r", "s1") == []
    assert story.used("s2") == (0, 1)
    story.moved("r", "s2")
    assert (story.used("s1"), story.used("s2")) == ((0, 0), (1, 0))


def test_a_worker_that_comes_back_while_a_model_is_removed_is_listened_to() -> None:
    name, a, b, c = ModelName("m"), WorkerId("a"), WorkerId("b"), WorkerId("c")
    sent: list[tuple[WorkerId, Message]] = []
    answers: list[Answers] = []
    catalog = Catalog(lambda worker, message: sent.append((worker, message)))
    catalog.add(ModelSettings(name="m", path="m.gguf"), [a, b], answers.append)
    for worker in (a, b):
        catalog.heard(worker, ModelChanged(info()))
    catalog.remove(name, [a, b], answers.append)
    catalog.gone(a)
    sent.clear()
    catalog.joined(a, {name: info()})
    catalog.joined(c, {})
    assert not sent, "nobody is told to add what is being removed"
    assert not catalog.is_removing(name, a), "what it loads from here on counts"
    assert catalog.is_removing(name, b)
    catalog.heard(b, ModelRemoved(name))
    assert answers[-1] == {a: None, b: None}


def test_a_request_that_has_failed_everywhere_is_told_so() -> None:
    """Not that there were no slots: `godwit sim chaos --seed 571` saw one that was alone in its cluster."""
    story = Story()
    story.join("s1", info(is_loaded=True))
    request, model = RequestId("r"), ModelName("m")
    queued = events.RequestQueued(
        request, model, story.now + 5, frozenset([WorkerId("s1")]), has_started=True
    )
    assert not story.tell(queued)
    story.now += 6
    (decision,) = story.tell(events.Tick())
    assert isinstance(decision, Reject)
    assert decision.message.endswith("in time: it has failed on all that have it")
