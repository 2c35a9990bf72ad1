"""What the scheduler hears of a request's size, and what requests teach by running."""

import pytest

from godwit.costs.sessions import SessionHazards
from godwit.protocol.entry import Entry
from godwit.protocol.journal import Journal
from godwit.scheduling.ask import Ask
from godwit.scheduling.joining import ask_of
from godwit.types import (
    ChatMessage,
    ChatPrompt,
    Prompt,
    RequestId,
    Sampling,
    TextPrompt,
    TokenPrompt,
    WorkerId,
)
from tests.protocol.client import Client
from tests.protocol.situations import LONG, finishes, run_until, running_on_a, two_workers
from tests.protocol.world import MODEL, NUM_PROMPT, World

A = WorkerId("a")


def entry(prompt: Prompt, expected_tokens: int | None = None) -> Entry:
    sink = Client(RequestId("r"), [], "", lambda _: None)
    sampling = Sampling(seed=1, max_tokens=50, temperature=0)
    return Entry(RequestId("r"), MODEL, prompt, sampling, sink, 0.0, Journal(), expected_tokens)


@pytest.mark.parametrize(
    ("prompt", "num_prompt"),
    [
        (TokenPrompt((1, 2, 3)), 3),
        (TextPrompt("x" * 40), 10),
        (ChatPrompt((ChatMessage("system", "x" * 8), ChatMessage("user", "x" * 12))), 5),
    ],
)
def test_a_prompt_is_counted_or_guessed_from_its_text(prompt: Prompt, num_prompt: int) -> None:
    is_counted = isinstance(prompt, TokenPrompt)
    assert ask_of(entry(prompt, 30)) == Ask(num_prompt, 0, 30, 50, is_counted=is_counted)


def test_once_a_worker_has_counted_them_its_word_holds() -> None:
    one = entry(TextPrompt("x" * 40))
    one.journal.prompt_ids = (1, 2, 3)
    assert ask_of(one) == Ask(3, 0, None, 50, is_counted=True, was_accepted=True)
    assert Ask(10, 4, 30, 50).with_tokens(20) == Ask(16, 4, 30, 50, is_counted=True, was_accepted=True)
    assert Ask(10, 4).context_tokens == 14
    assert Ask().context_tokens == 0


def _running(world: World, name: str) -> Ask:
    view = world.control.view()
    (ask,) = (
        one.ask
        for worker in view.workers.values()
        for one in worker.models[MODEL].running
        if one.request == name
    )
    return ask


def test_the_scheduler_knows_it_through_starts_moves_and_its_own_restart() -> None:
    world = two_workers()
    client = running_on_a(world, 5)
    ask = _running(world, "r1")
    assert (ask.num_prompt, ask.max_tokens) == (NUM_PROMPT, LONG)
    world.move("r1", "b")
    run_until(world, lambda: world.owner("r1") == "b")
    assert _running(world, "r1").num_prompt == NUM_PROMPT
    world.control.restart_scheduler()
    ask = _running(world, "r1")
    assert ask.num_prompt == NUM_PROMPT and ask.num_output >= 5
    finishes(world, client)


def test_requests_teach_how_long_prompts_take_and_how_long_outputs_are() -> None:
    world = World()
    world.join("a")
    times = world.times
    before = times.remaining_tokens(MODEL, 0, None, None)
    for number in range(30):
        client = world.start(f"r{number}", max_tokens=3, ignore_eos=True)
        world.deliver_all()
        world.tick(2.0)
        finishes(world, client)
    # The 2 s, and the second in which the client's end is looked for.
    assert 2.0 <= times.prefill_s(A, MODEL, NUM_PROMPT) <= 3.0
    assert times.remaining_tokens(MODEL, 0, None, None) < 20 < before


def test_a_request_that_is_cancelled_teaches_nothing_of_lengths() -> None:
    world = World()
    world.join("a")
    before = world.times.remaining_tokens(MODEL, 0, None, None)
    world.start("r1")
    world.run(3)
    world.cancel("r1")
    assert world.times.remaining_tokens(MODEL, 0, None, None) == before


def test_workers_that_come_and_go_are_heard_of_and_so_are_deadlines() -> None:
    stays = SessionHazards("exponential", refit_s=0.0)
    world = World(stays=stays)
    world.join("a")
    world.tick(5.0)
    (told,) = stays.report(world.now)
    assert (told.worker, told.age_s) == ("a", 5.0)
    world.start("r1")
    world.run(2)
    world.control.ask_drain(A, 60.0)
    assert stays.report(world.now)[0].notice_s == 60.0
    world.crash("a")
    world.run()
    assert stays.report(world.now) == ()
    world.join("a")
    (told,) = stays.report(world.now)
    assert (told.n, told.num_ended, told.notice_s) == (1, 1, None)
