"""Messages that come twice, late, out of order, or not at all."""

from msgspec.structs import replace

from godwit.protocol.messages import (
    AbortMove,
    Declined,
    InDoubt,
    Migrate,
    Prepare,
    Resume,
    Submit,
)
from godwit.types import WorkerId
from tests.protocol.situations import (
    committed,
    finishes,
    handed_over,
    in_rounds,
    run_until,
    running_on_a,
    sent,
    two_workers,
)
from tests.protocol.world import HEAD, LIMITS, MODEL

A, B = WorkerId("a"), WorkerId("b")


def test_a_second_prepare_does_not_end_what_the_first_one_brought() -> None:
    world = two_workers()
    client = committed(world)
    world.deliver_frame(*sent(world, HEAD, B, Prepare))
    world.run(3)
    assert world.owner("r1") == "b"
    finishes(world, client)


def test_a_second_submit_changes_nothing() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.deliver_frame(*sent(world, HEAD, A, Submit))
    world.run()
    num_before = len(client.ids)
    world.run()
    assert len(client.ids) > num_before and world.nodes[A].requests.num_running == 1
    finishes(world, client)


def test_an_old_submit_leaves_a_later_adoption_alone() -> None:
    world = two_workers()
    client = running_on_a(world)
    old = sent(world, HEAD, A, Submit)
    world.move("r1", "b")
    run_until(world, lambda: world.owner("r1") == "b")
    world.move("r1", "a")
    world.deliver_all()
    world.deliver_frame(*old)
    run_until(world, lambda: world.owner("r1") == "a")
    finishes(world, client)


def test_a_second_migrate_changes_nothing() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.deliver_frame(*sent(world, HEAD, A, Migrate))
    run_until(world, lambda: world.owner("r1") == "b")
    assert world.records[-1].outcome == "done"
    finishes(world, client)


def test_a_migrate_for_a_move_that_is_over_is_undone_by_asking_the_head() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.move("r1", "b", replace(LIMITS, live=False))
    world.deliver_all()
    world.crash("b")
    world.join("b")
    world.run()
    assert world.records[-1].outcome == "failed"
    world.deliver_frame(*sent(world, HEAD, A, Migrate))
    world.run(3)
    finishes(world, client)


def test_resume_arriving_twice_opens_one_sequence() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.deliver_frame(*sent(world, A, B, Resume))
    assert world.nodes[B].instances.engines[MODEL].free_slots == 1
    run_until(world, lambda: world.owner("r1") == "b")
    finishes(world, client)


def test_commit_before_resume_ends_at_a_deadline_with_the_source_carrying_on() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.hold_back("a", "b")
    world.move("r1", "b", replace(LIMITS, live=False))
    world.run()
    queue = world.queue(A, B)
    assert len(queue) == 2
    queue.reverse()
    world.let_go("a", "b")
    world.run(2)
    assert world.owner("r1") == "a"
    finishes(world, client)
    assert world.records[-1].outcome == "failed"


def test_declined_for_a_move_that_is_over_leaves_the_next_move_alone() -> None:
    world = two_workers()
    client = in_rounds(world)
    world.worker_loses_head("b")
    world.run()
    assert sent(world, B, A, Declined)
    world.link("b")
    world.move("r1", "b")
    world.deliver_all()
    world.deliver_frame(*sent(world, B, A, Declined))
    run_until(world, lambda: world.owner("r1") == "b")
    finishes(world, client)


def test_an_abort_that_overtakes_resume_is_answered_with_declined() -> None:
    world = two_workers()
    client = running_on_a(world)
    world.hold_back("a", "b")
    world.move("r1", "b")
    world.deliver_all()
    world.tick(31.0)
    world.deliver_all()
    assert sent(world, HEAD, B, AbortMove)
    world.let_go("a", "b")
    finishes(world, client)
    assert [record.outcome for record in world.records] == ["failed"]


def test_doubt_about_a_move_that_the_head_has_forgotten_is_answered() -> None:
    """Keep was lost: no real link does that, and the source asks again at its deadline."""
    world = two_workers()
    client = handed_over(world)
    world.crash("b")
    world.deliver("b", "head")
    world.queue(HEAD, A).clear()
    world.thaw()
    world.deliver_all()
    world.tick(11.0)
    world.run(2)
    assert sent(world, A, HEAD, InDoubt)
    num_before = len(client.ids)
    world.run(3)
    assert len(client.ids) > num_before
    finishes(world, client)
