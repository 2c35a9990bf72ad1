"""Servers of one model with contexts of several lengths: nobody is sent to where there is no room for it."""

import pytest
from msgspec.structs import replace

from godwit.errors import ContextTooLongError
from godwit.scheduling.ask import Ask
from godwit.scheduling.events import (
    Decision,
    DrainRequested,
    MoveRequested,
    Placed,
    PlacementFailed,
    RefuseMove,
    Reject,
    RequestQueued,
    Tick,
    WorkerJoined,
)
from godwit.types import ModelInfo, ModelName, RequestId, WorkerId
from tests.scheduling.build import Story, info, load, move, start

R, M = RequestId("r"), ModelName("m")
POLICIES = ["availability", "fastest", "hazard", "live_migration", "locality", "preemption", "random"]


def with_context(num_tokens: int, name: str = "m", *, is_loaded: bool = True) -> ModelInfo:
    return replace(info(name, is_loaded=is_loaded), context_tokens=num_tokens)


def two(policy: str = "availability", *, slots_of_long: int = 2) -> Story:
    """`short`, which is idle, and `long`, which serves somebody."""
    story = Story(policy)
    story.join("short", with_context(100))
    story.join("long", with_context(1000), slots=slots_of_long, running=["x"])
    return story


def queues(story: Story, ask: Ask, *, has_started: bool = False) -> list[Decision]:
    return story.tell(RequestQueued(R, M, story.now + 60.0, has_started=has_started, ask=ask))


def runs(story: Story, worker: str, context: int, num_tokens: int, max_tokens: int | None = None) -> None:
    """A worker joins with `r`, whose prompt has 10 tokens."""
    ask = Ask(10, num_tokens - 10, None, max_tokens, is_counted=True)
    here = (Placed(R, M, num_tokens, ask=ask),)
    story.tell(WorkerJoined(WorkerId(worker), 1, 2, 100, (with_context(context),), here))


class TestNew:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_goes_where_its_prompt_has_room(self, policy: str) -> None:
        assert queues(two(policy), Ask(100, max_tokens=1, is_counted=True)) == [start("r", "long")]

    @pytest.mark.parametrize("policy", POLICIES)
    def test_goes_where_the_output_that_is_expected_has_room(self, policy: str) -> None:
        assert queues(two(policy), Ask(50, expected_tokens=300, is_counted=True)) == [start("r", "long")]

    def test_a_limit_bounds_what_is_expected(self) -> None:
        assert queues(two(), Ask(50, max_tokens=10, is_counted=True)) == [start("r", "short")]

    def test_waits_rather_than_go_where_its_prompt_has_none(self) -> None:
        story = two(slots_of_long=1)
        assert queues(story, Ask(100, max_tokens=1, is_counted=True)) == []
        assert story.end("x") == [start("r", "long")]

    def test_goes_where_it_may_be_cut_off_if_the_longer_one_is_full(self) -> None:
        story = two(slots_of_long=1)
        assert queues(story, Ask(50, expected_tokens=300, is_counted=True)) == [start("r", "short")]

    def test_where_all_may_be_too_short_it_goes_by_the_policy(self) -> None:
        assert queues(two(), Ask(50, expected_tokens=3000, is_counted=True)) == [start("r", "short")]

    def test_one_that_is_too_long_for_all_is_told_so_by_a_worker(self) -> None:
        story = two()
        assert queues(story, Ask(5000, is_counted=True)) == [start("r", "short")]
        failed = PlacementFailed(R, WorkerId("short"), "too long", is_too_long=True)
        assert story.tell(failed) == [start("r", "long")]
        failed = PlacementFailed(R, WorkerId("long"), "too long", is_too_long=True)
        assert story.tell(failed) == [Reject(R, ContextTooLongError.code, "too long")]

    def test_a_prompt_that_was_longer_than_it_looked_goes_to_the_longer_one_for_good(self) -> None:
        story = two(slots_of_long=1)
        assert queues(story, Ask(20, max_tokens=10)) == [start("r", "short")]
        assert story.tell(PlacementFailed(R, WorkerId("short"), "too long", is_too_long=True)) == []
        for _ in range(3):
            story.now += 1
            assert story.tell(Tick()) == []
        assert story.end("x") == [start("r", "long")]

    def test_a_long_context_is_loaded_for_it(self) -> None:
        story = Story()
        story.join("short", with_context(100))
        story.join("long", with_context(1000, is_loaded=False))
        assert queues(story, Ask(200, is_counted=True)) == [load("long", "m")]


class TestRuns:
    def test_a_failover_waits_for_a_context_that_is_long_enough(self) -> None:
        story = two(slots_of_long=1)
        assert queues(story, Ask(50, 100, is_counted=True, was_accepted=True), has_started=True) == []
        assert story.end("x") == [start("r", "long")]

    def test_in_the_end_its_client_is_told_why(self) -> None:
        story = Story()
        story.join("short", with_context(100))
        assert queues(story, Ask(50, 100, is_counted=True, was_accepted=True), has_started=True) == []
        story.now += 61
        (rejected,) = story.tell(Tick())
        assert isinstance(rejected, Reject)
        assert rejected.message.endswith("no server with m that is left can go on with its 150 tokens")

    def test_a_drain_prefers_a_context_as_long_as_its_own(self) -> None:
        story = two()
        runs(story, "leaves", 1000, 30)
        assert story.tell(DrainRequested(WorkerId("leaves"), None)) == [move("r", "leaves", "long", "drain")]

    @pytest.mark.parametrize(("num_tokens", "goes"), [(30, True), (99, True), (100, False)])
    def test_a_drain_takes_a_shorter_one_as_long_as_there_is_room(
        self, num_tokens: int, *, goes: bool
    ) -> None:
        story = Story()
        story.join("short", with_context(100))
        runs(story, "leaves", 1000, num_tokens)
        decisions = story.tell(DrainRequested(WorkerId("leaves"), None))
        assert decisions == ([move("r", "leaves", "short", "drain")] if goes else [])

    def test_it_does_not_make_room_by_going_where_it_could_be_cut_off(self) -> None:
        for context, victims_leave in ((100, False), (1000, True)):
            story = Story("live_migration")
            runs(story, "here", 1000, 30)
            story.join("other", with_context(context))
            story.changed("here", with_context(1000, "n", is_loaded=False))
            decisions = story.queue("s", model="n")
            assert bool(decisions) == victims_leave, (context, decisions)

    def test_a_limit_says_how_far_it_may_come(self) -> None:
        story = Story()
        story.join("short", with_context(100))
        runs(story, "here", 1000, 30, max_tokens=60)
        assert story.move("r", "short") == [move("r", "here", "short", "asked for")]

    def test_by_hand_it_must_be_forced(self) -> None:
        story = Story()
        story.join("short", with_context(100))
        runs(story, "here", 1000, 30)
        (refused,) = story.move("r", "short")
        assert isinstance(refused, RefuseMove)
        assert "short has a context of 100 tokens and r may come to 1000" in refused.message
        forced = MoveRequested(R, WorkerId("short"), "asked for", is_forced=True)
        assert story.tell(forced) == [move("r", "here", "short", "asked for")]

    def test_a_guess_of_how_far_it_is_refuses_no_move(self) -> None:
        story = Story()
        story.join("other", with_context(1000))
        runs(story, "here", 1000, 900)
        story.now += 300  # It may be stalled; by its usual pace it would be far beyond its context.
        assert story.move("r", "other") == [move("r", "here", "other", "asked for")]

    def test_nor_does_it_keep_one_from_leaving(self) -> None:
        story = Story()
        story.join("other", with_context(1000))
        runs(story, "leaves", 1000, 900)
        story.now += 300
        decisions = story.tell(DrainRequested(WorkerId("leaves"), None))
        assert decisions == [move("r", "leaves", "other", "drain")]


def test_one_that_was_accepted_waits_for_a_context_like_that() -> None:
    story = Story()
    story.join("short", with_context(100))
    assert queues(story, Ask(500, is_counted=True, was_accepted=True)) == []
    assert story.join("long", with_context(1000)) == [start("r", "long")]


def test_one_that_can_only_wait_holds_nobody_up() -> None:
    story = two(slots_of_long=1)
    assert queues(story, Ask(500, is_counted=True, was_accepted=True)) == []
    assert story.queue("s") == [start("s", "short")]


def test_a_worker_that_leaves_takes_its_context_along() -> None:
    story = two()
    story.leave("long")
    assert queues(story, Ask(5000, is_counted=True)) == [start("r", "short")]
    failed = PlacementFailed(R, WorkerId("short"), "too long", is_too_long=True)
    assert story.tell(failed) == [Reject(R, ContextTooLongError.code, "too long")]
