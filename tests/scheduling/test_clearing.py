"""Making room for a model where busy instances stand in the way: claims from their begin to their end."""

import pytest

from godwit.scheduling.events import Decision, Load, ModelPinned, Move, RequestAccepted, Tick, Unload
from godwit.types import ModelInfo, ModelName, RequestId, Tier
from tests.scheduling.build import Story, info, interrupt, load, move, start, unload

GB = 1_000_000_000


def checkpoint(name: str, tier: Tier, *, is_loaded: bool = False) -> ModelInfo:
    """One that takes a second from DRAM and 6.7 s from SSD as long as nobody knows better."""
    return ModelInfo(ModelName(name), f"digest of {name}", 1024, 60, is_loaded, True, 10 * GB, tier)


def two_servers(policy: str, **settings: int) -> Story:
    """The example of ServerlessLLM's figure 3: `a` runs on s2, which has b in DRAM; s1 has b on SSD."""
    story = Story(policy, **settings)
    story.join("s1", checkpoint("a", Tier.DRAM), checkpoint("b", Tier.SSD))
    story.join("s2", checkpoint("a", Tier.DRAM, is_loaded=True), checkpoint("b", Tier.DRAM), running=["r"])
    story.tell(RequestAccepted(RequestId("r"), 100))
    return story


def coming(story: Story) -> list[tuple[str, str]]:
    workers = story.scheduler.snapshot().workers.values()
    return [(one.id, name) for one in workers for name, state in one.models.items() if state.is_coming]


def to_s1() -> list[Decision]:
    return [load("s1", "a"), move("r", "s2", "s1", "makes room for b")]


# --- what each policy does ----------------------------------------------------------------------------------


def test_live_migration_moves_the_running_request_away_and_loads_where_the_model_is_close() -> None:
    story = two_servers("live_migration")
    assert story.queue("new", model="b") == to_s1()
    assert coming(story) == [("s2", "b")]
    assert story.changed("s1", checkpoint("a", Tier.DRAM, is_loaded=True)) == []
    assert story.moved("r", "s1") == [unload("s2", "a"), load("s2", "b")]
    assert coming(story) == []
    assert story.changed("s2", checkpoint("a", Tier.DRAM)) == []
    assert story.changed("s2", checkpoint("b", Tier.DRAM, is_loaded=True)) == [start("new", "s2")]


def test_preemption_kills_the_running_request_which_goes_on_elsewhere_and_is_killed_once_only() -> None:
    story = two_servers("preemption")
    assert story.queue("new", model="b") == [interrupt("r", "s2", is_preemption=True)]
    again = story.queue("r", model="a", exclude=["s2"], has_started=True, was_preempted=True)
    assert again == [unload("s2", "a"), load("s2", "b"), load("s1", "a")]
    assert story.changed("s2", checkpoint("b", Tier.DRAM, is_loaded=True)) == [start("new", "s2")]
    assert story.changed("s1", checkpoint("a", Tier.DRAM, is_loaded=True)) == [start("r", "s1")]
    story.tell(RequestAccepted(RequestId("r"), 120))
    story.tell(RequestAccepted(RequestId("new"), 10))
    # s1 has c and s2 has not, and `r` was preempted before.
    assert story.changed("s1", checkpoint("c", Tier.DRAM)) == []
    assert story.queue("third", model="c") == []


def test_a_preempted_request_may_come_back_to_where_it_was() -> None:
    story = two_servers("preemption")
    story.leave("s1")
    story.queue("new", model="b")
    assert story.queue("r", model="a", exclude=["s2"], has_started=True, was_preempted=True) == [
        unload("s2", "a"),
        load("s2", "b"),
    ]
    story.changed("s2", checkpoint("b", Tier.DRAM, is_loaded=True))
    assert story.end("new") == [unload("s2", "b"), load("s2", "a")]
    assert story.changed("s2", checkpoint("a", Tier.DRAM, is_loaded=True)) == [start("r", "s2")]


def test_locality_waits_for_the_server_that_has_the_model_close() -> None:
    story = two_servers("locality")
    assert story.queue("new", model="b") == []
    assert story.end("r") == [unload("s2", "a"), load("s2", "b")]


def test_availability_loads_slowly_where_there_is_room() -> None:
    story = two_servers("availability")
    assert story.queue("new", model="b") == [load("s1", "b")]


@pytest.mark.parametrize("policy", ["locality", "availability"])
def test_a_model_that_is_never_idle_does_not_keep_others_out_for_ever(policy: str) -> None:
    story = Story(policy)
    story.join("s1", info("a"), info("b", is_loaded=False))
    story.queue("r1", model="a")
    assert story.queue("new", model="b") == []
    assert story.queue("r2", model="a") == [start("r2", "s1")]
    story.end("r1")
    story.now = 5.0
    assert story.tell(Tick()) == []
    assert coming(story) == [("s1", "b")]
    assert story.queue("r3", model="a") == []
    assert story.end("r2") == [unload("s1", "a"), load("s1", "b")]
    assert story.changed("s1", info("b")) == [start("new", "s1")]


# --- when something fails -----------------------------------------------------------------------------------


def test_when_the_victim_cannot_move_all_is_given_back_and_the_request_goes_elsewhere() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    # The move is refused: the victim stays, for a while nobody asks it again, and s1 loads b, slowly.
    story.changed("s1", checkpoint("a", Tier.DRAM, is_loaded=True))
    assert story.moved("r", None) == [unload("s1", "a"), load("s1", "b")]
    assert coming(story) == []
    assert story.used("s2", "a") == (1, 0)


def test_a_destination_that_dies_ends_the_claim() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    assert story.leave("s1") == []
    assert story.moved("r", None) == []
    assert coming(story) == []
    assert story.used("s2", "a") == (1, 0)
    assert story.end("r") == [unload("s2", "a"), load("s2", "b")]


def test_a_worker_that_dies_takes_its_claims_with_it() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    story.changed("s1", checkpoint("a", Tier.DRAM, is_loaded=True))
    assert story.leave("s2") == []
    assert coming(story) == []
    # The request that was moving fails over to where it was going; s1 is busy then.
    assert story.moved("r", None) == [unload("s1", "a"), load("s1", "b")]


def test_a_request_that_gives_up_takes_its_claim_back() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    assert story.end("new") == []
    assert coming(story) == []
    assert story.moved("r", "s1") == []
    # Nobody needed the room, so the instance is still there.
    assert story.queue("late", model="a") == [start("late", "s2")]


def test_a_victim_that_ends_by_itself_has_made_room_too() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    assert story.end("r") == [unload("s2", "a"), load("s2", "b")]


def test_the_room_of_a_claim_is_kept_while_it_waits() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    assert story.queue("more", model="a") == []  # s2's instance is leaving; s1's is promised to it.
    assert story.changed("s1", checkpoint("a", Tier.DRAM, is_loaded=True)) == [start("more", "s1")]
    assert story.moved("r", "s1") == [unload("s2", "a"), load("s2", "b")]


def test_what_waits_for_the_same_model_shares_the_claim() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    assert story.queue("new2", model="b") == []
    story.changed("s1", checkpoint("a", Tier.DRAM, is_loaded=True))
    story.moved("r", "s1")
    ready = story.changed("s2", checkpoint("b", Tier.DRAM, is_loaded=True))
    assert ready == [start("new", "s2"), start("new2", "s2")]


def test_a_load_that_fails_after_all_sends_the_request_elsewhere() -> None:
    story = two_servers("live_migration")
    story.queue("new", model="b")
    story.changed("s1", checkpoint("a", Tier.DRAM, is_loaded=True))
    story.moved("r", "s1")
    story.end("r")
    failed = story.changed("s2", checkpoint("b", Tier.DRAM), error="damaged")
    assert failed == [unload("s1", "a"), load("s1", "b")]


# --- pins, keep-alive, removal ------------------------------------------------------------------------------


def test_a_pinned_model_is_neither_evicted_nor_moved_away() -> None:
    story = two_servers("live_migration")
    story.tell(ModelPinned(ModelName("a"), True))
    assert story.queue("new", model="b") == [load("s1", "b")]
    story.end("new")
    story.end("r")
    story.changed("s1", checkpoint("b", Tier.SSD), error="damaged")
    assert story.queue("again", model="b", exclude=["s1"]) == []
    assert story.tell(ModelPinned(ModelName("a"), False)) == [unload("s2", "a"), load("s2", "b")]


def test_an_instance_that_is_idle_for_long_is_unloaded_unless_it_is_pinned() -> None:
    story = Story(keep_alive_s=30.0)
    story.join("s1", info("a", device_bytes=30), info("b", device_bytes=30))
    story.tell(ModelPinned(ModelName("b"), True))
    story.now = 20.0
    story.queue("r", model="a")
    story.end("r")
    story.now = 49.0
    assert story.tell(Tick()) == []
    story.now = 50.0
    assert story.tell(Tick()) == [unload("s1", "a")]
    assert story.tell(Tick()) == []


def test_what_was_used_longest_ago_is_evicted_first() -> None:
    story = Story("availability")
    story.join("s1", *(info(name, device_bytes=50) for name in ("x", "y")), info("z", is_loaded=False))
    for number, model in enumerate(("y", "x")):
        story.now += 1.0
        story.queue(f"r{number}", model=model)
        story.end(f"r{number}")
    assert story.queue("r", model="z") == [unload("s1", "y"), unload("s1", "x"), load("s1", "z")]


# --- reasons ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "kind", "words"),
    [
        ("availability", Load, ["new", "loads in 6.7 s from ssd"]),
        ("live_migration", Move, ["makes room for b"]),
        ("live_migration", Load, ["r moves there"]),
    ],
)
def test_decisions_say_why(policy: str, kind: type[Decision], words: list[str]) -> None:
    story = two_servers(policy)
    story.raw = True
    decisions = [one for one in story.queue("new", model="b") if isinstance(one, kind)]
    assert decisions
    for word in words:
        assert word in str(decisions[0])


def test_an_eviction_says_for_whom() -> None:
    story = two_servers("availability")
    story.raw = True
    story.queue("new", model="b")
    story.end("new")
    story.changed("s1", checkpoint("b", Tier.SSD, is_loaded=True))
    reasons = [one.reason for one in story.queue("x", model="a", exclude=["s2"]) if isinstance(one, Unload)]
    assert reasons == ["makes room for a"]


def test_a_victim_that_its_worker_drops_by_itself_frees_its_memory_for_the_claim() -> None:
    story = Story("preemption")
    names = ("a", "b", "c")
    story.join("w", *(info(name, is_loaded=name == "a", device_bytes=100) for name in names))
    story.queue("r1", model="a")
    assert story.queue("r2", model="b") == [interrupt("r1", "w", is_preemption=True)]
    assert story.changed("w", info("a", is_loaded=False, device_bytes=100)) == []
    assert story.queue("r3", model="c") == []
    assert story.queue("r1", model="a", exclude=["w"], has_started=True, was_preempted=True) == [
        load("w", "b")
    ]
