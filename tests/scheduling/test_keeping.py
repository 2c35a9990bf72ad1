"""Requests go where their promises are kept, and break one only where their server leaves anyway."""

import pytest

from godwit.scheduling.ask import Ask
from godwit.scheduling.early import EarlySettings
from godwit.scheduling.events import (
    Decision,
    Placed,
    RefuseMove,
    Reject,
    RequestQueued,
    Tick,
    WorkerJoined,
)
from godwit.scheduling.events import MoveRequested as Wish
from godwit.scheduling.explain import explain
from godwit.types import CARRIES_ALL, Carries, ModelInfo, ModelName, Promise, RequestId, WorkerId, declaring
from tests.scheduling.build import Story, info, interrupt, leave, load, move, start, unload
from tests.scheduling.hazards import Oracle
from tests.scheduling.test_early import Fleet

NOTHING = Carries(seed=False, penalties=False, grammar=False, kv=False)
SEEDED = (Promise.SEED,)
M = ModelName("m")


def limited(name: str = "m", carries: Carries = NOTHING, *, is_loaded: bool = True) -> ModelInfo:
    return declaring(info(name, is_loaded=is_loaded), carries)


def joins(story: Story, name: str, model: ModelInfo, *requests: str, promises: tuple[Promise, ...]) -> None:
    """A worker joins with requests that have drawn 20 tokens."""
    ask = Ask(10, 20, None, 100, promises)
    running = tuple(Placed(RequestId(one), model.name, 30, ask=ask) for one in requests)
    story.tell(WorkerJoined(WorkerId(name), 1, 2, 100, (model,), running))


def queues(
    story: Story, promises: tuple[Promise, ...], drawn_by: Carries = CARRIES_ALL, num_output: int = 20
) -> list[Decision]:
    """A request has lost its server."""
    ask = Ask(10, num_output, None, 100, promises, drawn_by)
    return story.tell(RequestQueued(RequestId("r"), M, story.now + 60.0, has_started=True, ask=ask))


def wishes(story: Story, to: str | None = None, *, is_forced: bool = False) -> list[Decision]:
    destination = None if to is None else WorkerId(to)
    return story.tell(Wish(RequestId("r"), destination, "asked for", is_forced))


def two(promises: tuple[Promise, ...], *, is_exact_too: bool = False) -> Story:
    """`r` on a; b, which carries nothing; maybe c, which carries all."""
    story = Story()
    joins(story, "a", info(), "r", promises=promises)
    story.join("b", limited())
    if is_exact_too:
        story.join("c", info(), running=["x"])  # b is emptier
    return story


# --- a move that somebody asks for ------------------------------------------------------------------------


def test_a_move_that_is_asked_for_goes_where_the_promise_is_kept() -> None:
    assert wishes(two(SEEDED, is_exact_too=True)) == [move("r", "a", "c")]
    assert wishes(two((), is_exact_too=True)) == [move("r", "a", "b")]


@pytest.mark.parametrize("to", ["b", None])
def test_a_move_that_would_break_a_promise_is_refused_unless_forced(to: str | None) -> None:
    story = two((Promise.SEED, Promise.PENALTIES))
    (refused,) = wishes(story, to)
    assert isinstance(refused, RefuseMove)
    assert refused.code == "conflict"
    assert refused.message == (
        "the engine on b cannot continue r exactly: its seed and its penalties would be lost; "
        "move it to a server that can, or force it (`godwit migrate --force`)"
    )
    assert wishes(story, to, is_forced=True) == [move("r", "a", "b")]


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_grammar_is_never_broken(is_forced: bool) -> None:
    (refused,) = wishes(two((Promise.GRAMMAR,)), is_forced=is_forced)
    assert isinstance(refused, RefuseMove)
    assert refused.message.endswith("and the output would be wrong; move it to a server that can")


@pytest.mark.parametrize(
    ("promises", "carries", "is_kept"),
    [
        (SEEDED, Carries(penalties=False, grammar=False), True),
        (SEEDED, Carries(seed=False), False),
        ((Promise.PENALTIES,), Carries(seed=False), True),
        ((Promise.PENALTIES,), Carries(penalties=False), False),
        ((Promise.GRAMMAR,), Carries(seed=False, penalties=False), True),
        ((Promise.GRAMMAR,), Carries(grammar=False), False),
        ((), NOTHING, True),
    ],
)
def test_what_matters_is_what_the_request_asked_for(
    promises: tuple[Promise, ...], carries: Carries, is_kept: bool
) -> None:
    story = Story()
    joins(story, "a", info(), "r", promises=promises)
    story.join("b", limited(carries=carries))
    assert (wishes(story) == [move("r", "a", "b")]) == is_kept


@pytest.mark.parametrize(("promise", "is_kept"), [(Promise.SEED, False), (Promise.PENALTIES, True)])
def test_a_seed_must_be_carried_at_both_ends_and_penalties_at_the_destination(
    promise: Promise, is_kept: bool
) -> None:
    story = Story()
    joins(story, "a", limited(), "r", promises=(promise,))
    story.join("b", info())
    assert (wishes(story) == [move("r", "a", "b")]) == is_kept


# --- a drain ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within_s", [None, 30.0])
def test_a_drain_prefers_who_keeps_the_promise_and_else_takes_who_does_not(within_s: float | None) -> None:
    assert two(SEEDED, is_exact_too=True).drain("a", within_s) == [move("r", "a", "c", "drain")]
    story = two(SEEDED)
    assert story.drain("a", within_s) == [move("r", "a", "b", "drain")]
    assert story.moved("r", "b") == [leave("a")]


def test_a_drain_lets_a_request_wait_for_its_turn_where_the_promise_is_kept() -> None:
    story = Story(max_moves_per_worker=1)
    joins(story, "a", info(), "r", promises=SEEDED)
    joins(story, "d", info(), "s", promises=SEEDED)
    story.join("b", limited())
    story.join("c", info())
    assert story.drain("a") == [move("r", "a", "c", "drain")]
    assert story.drain("d") == []
    assert story.moved("r", "c") == [move("s", "d", "c", "drain"), leave("a")]


def test_what_must_be_kept_waits_for_the_deadline_and_then_for_a_server_that_can() -> None:
    story = two((Promise.GRAMMAR,))
    assert story.drain("a", 10.0) == []
    story.now = 10.0
    assert story.tell(Tick()) == [interrupt("r", "a")]
    assert queues(story, (Promise.GRAMMAR,)) == [leave("a")]
    assert story.join("c", info()) == [start("r", "c")]


def test_a_draining_server_lets_its_request_be_moved_by_hand() -> None:
    story = Story(max_moves_per_worker=0)
    joins(story, "a", info(), "r", promises=SEEDED)
    story.join("b", limited())
    assert story.drain("a") == []
    assert wishes(story, "b") == [move("r", "a", "b")]


# --- a failover ---------------------------------------------------------------------------------------------


def test_a_failover_prefers_who_keeps_the_promise_even_behind_a_load() -> None:
    story = Story()
    story.join("b", limited())
    story.join("c", info(is_loaded=False))
    assert queues(story, SEEDED) == [load("c")]
    assert story.changed("c", info()) == [start("r", "c")]


def test_a_failover_takes_who_does_not_keep_the_promise_where_nobody_does() -> None:
    story = Story()
    story.join("b", limited())
    assert queues(story, SEEDED) == [start("r", "b")]


def test_a_request_without_output_has_nothing_to_lose() -> None:
    story = Story()
    story.join("b", limited())
    story.join("c", info(), running=["x"])
    assert queues(story, SEEDED, num_output=0) == [start("r", "b")]


def test_output_of_an_engine_with_draws_of_its_own_goes_on_anywhere() -> None:
    story = Story()
    story.join("b", limited())
    story.join("c", info(), running=["x"])
    assert queues(story, SEEDED, drawn_by=NOTHING) == [start("r", "b")]


def test_what_must_be_kept_is_rejected_in_the_end_and_holds_up_nobody() -> None:
    story = Story()
    story.join("b", limited())
    assert queues(story, (Promise.GRAMMAR,)) == []
    assert story.queue("new") == [start("new", "b")]
    story.now = 60.0
    (rejected,) = story.tell(Tick())
    assert isinstance(rejected, Reject)
    assert rejected.message.endswith("that is left can go on with its 30 tokens in the middle of a grammar")


# --- making room --------------------------------------------------------------------------------------------


def crowded(policy: str, promises: tuple[Promise, ...], source: ModelInfo, other: ModelInfo) -> Story:
    """`r` of model m on a, in the way of model n; `other` is m on b, which does not have n."""
    story = Story(policy)
    ask = Ask(10, 20, None, 100, promises)
    running = (Placed(RequestId("r"), M, 30, ask=ask),)
    wanted = info("n", is_loaded=False)
    story.tell(WorkerJoined(WorkerId("a"), 1, 2, 100, (source, wanted), running))
    story.join("b", other)
    return story


def test_nobody_is_moved_to_make_room_who_would_lose_by_it() -> None:
    story = crowded("live_migration", SEEDED, info(), limited())
    assert story.queue("new", model="n") == []
    (row,) = explain(story.scheduler.snapshot(), ModelName("n"), "live_migration").rows
    assert row.text.endswith(
        "m, which cannot move because no other server has room for it and could continue its requests exactly"
    )
    story = crowded("live_migration", (), info(), limited())
    assert story.queue("new", model="n") == [move("r", "a", "b", "makes room for n")]
    story = crowded("live_migration", SEEDED, info(), info())
    assert story.queue("new", model="n") == [move("r", "a", "b", "makes room for n")]


def test_nobody_is_preempted_whose_own_engine_could_not_go_on_with_it() -> None:
    assert crowded("preemption", SEEDED, limited(), info()).queue("new", model="n") == []
    story = crowded("preemption", SEEDED, info(), limited())
    assert story.queue("new", model="n") == [interrupt("r", "a", is_preemption=True)]
    story = crowded("preemption", (), limited(), info())
    assert story.queue("new", model="n") == [interrupt("r", "a", is_preemption=True)]
    assert unload("a", "m") not in story.tell(Tick())


# --- early moves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promises", [SEEDED, ()], ids=["with a seed", "without"])
def test_nobody_moves_early_to_where_a_promise_would_break(promises: tuple[Promise, ...]) -> None:
    """a goes in 8 s, b and c stay; b carries nothing."""
    fleet = Fleet(Oracle({"a": 8.0}), EarlySettings(hysteresis_s=2.0))
    running = (Placed(RequestId("r"), M, 400, ask=Ask(100, 300, 500, 2000, promises)),)
    fleet.scheduler.handle(WorkerJoined(WorkerId("a"), 1, 2, 100, (info(),), running), 0.0)
    fleet.scheduler.handle(WorkerJoined(WorkerId("b"), 1, 2, 100, (limited(),)), 0.0)
    assert fleet.moves() == ([] if promises else [("r", "a", "b")])
    fleet.join("c")
    assert fleet.moves(1.0) == ([("r", "a", "c")] if promises else [])
