"""Commands and failures of an engine over a server, at moments that a script chooses."""

import aiohttp
import pytest

from godwit.engines import progress
from godwit.errors import EngineError, InvariantBrokenError
from godwit.ports import Computed, Ended, Failed, Generated, Held, SequenceSpec
from godwit.types import RequestId, Sampling
from tests.engines.servedrig import GREEDY, LENGTH, PROMPT, Make, kinds, opened, settle, until

# --- holding, appending, releasing while the server is at work ---


def test_commands_of_one_tick_take_effect_in_order(make: Make) -> None:
    server, rig = make()
    whole = rig.run(PROMPT, GREEDY)
    server.gates["draw"].shut()
    request = opened(rig)
    rig.engine.generate(request)
    server.gates["draw"].wait_for(LENGTH + 1)
    rig.engine.hold(request)
    rig.engine.generate(request)
    rig.engine.hold(request)
    rig.engine.append(request, whole[:2])
    rig.engine.generate(request)
    rig.engine.hold(request, 4)
    server.gates["draw"].open()
    assert rig.held(request, occurrences=3) == 4
    assert rig.outputs(request) == whole[2:4]
    rig.engine.generate(request)
    assert rig.finish(request) == (whole[2:], "length")


def test_an_answer_that_is_slow_to_be_closed_is_not_followed_by_its_tokens(make: Make) -> None:
    server, rig = make()
    whole = rig.run(PROMPT, GREEDY)
    server.gates["cleanup"].shut()
    request = opened(rig)
    rig.when_drawn(request, 2, lambda: rig.engine.hold(request))
    rig.engine.generate(request)
    assert rig.held(request) == 3
    settle(rig)
    assert rig.outputs(request) == whole[:3]
    rig.engine.append(request, whole[3:4])
    settle(rig)
    assert not rig.computed(request), "one thing at a time"
    rig.engine.generate(request)
    server.gates["cleanup"].open()
    rig.wait_for(request, Ended)
    rig.engine.release(request)
    drawn = [event.token.id for event in rig.events(request) if isinstance(event, Generated)]
    assert drawn == whole[:3] + whole[4:]
    assert kinds(rig, request).count("Held") == 1


def test_nothing_is_computed_or_said_after_a_hold_that_follows_a_draw(make: Make) -> None:
    server, rig = make()
    request = opened(rig)
    rig.engine.generate(request)
    rig.engine.hold(request, 3)
    rig.held(request)
    settle(rig)
    rig.engine.append(request, [1])
    event = rig.wait_for(request, Computed)
    assert isinstance(event, Computed)
    assert (event.num_tokens, event.round_tokens) == (len(PROMPT) + 4, 2), "the last drawn and the new one"
    assert kinds(rig, request) == ["Generated"] * 3 + ["Held", "Computed"]
    assert [count for _, count in server.calls["prefill"]] == [len(PROMPT) + 4]
    rig.engine.release(request)


def test_a_burst_of_tokens_is_cut_where_the_hold_is(make: Make) -> None:
    _, rig = make(burst=4)
    whole = rig.run(PROMPT, GREEDY)
    request = opened(rig)
    rig.when_drawn(request, 1, lambda: rig.engine.hold(request, 6))
    rig.engine.generate(request)
    assert rig.held(request) == 6
    rig.engine.generate(request)
    assert rig.finish(request) == (whole, "length")


def test_a_name_that_is_opened_again_hears_nothing_of_its_former_life(make: Make) -> None:
    """The former life's answer is still being closed when the new one begins."""
    server, rig = make(slots=1)
    whole = rig.run(PROMPT, GREEDY)
    server.gates["cleanup"].shut()
    request = RequestId("again")
    rig.engine.open(request, SequenceSpec(PROMPT, (), GREEDY))
    rig.engine.generate(request)
    rig.wait_for(request, Ended)
    num_before = len(rig.events(request))
    rig.engine.release(request)
    rig.engine.open(request, SequenceSpec(PROMPT, tuple(whole[:2]), GREEDY))
    rig.engine.generate(request)
    rig.wait_for(request, Ended, occurrences=2)
    server.gates["cleanup"].open()
    rig.engine.release(request)
    later = rig.events(request)[num_before:]
    assert [e.token.id for e in later if isinstance(e, Generated)] == whole[2:]


def test_a_released_name_opened_again_is_worked_on_once(make: Make) -> None:
    server, rig = make(slots=1)
    server.gates["draw"].shut()
    server.gates["cleanup"].shut()
    request = RequestId("again")
    rig.engine.open(request, SequenceSpec(PROMPT, (), GREEDY))
    rig.engine.generate(request)
    server.gates["draw"].wait_for(1)
    rig.engine.release(request)
    rig.engine.open(request, SequenceSpec(PROMPT, (), GREEDY))
    rig.engine.generate(request)
    server.gates["draw"].wait_for(2)
    server.gates["cleanup"].open()
    server.gates["draw"].open()
    assert len(rig.finish(request)[0]) == LENGTH
    assert len(server.calls["draw"]) == 2


def test_a_full_context_is_a_round_that_leaves_room_for_a_token(make: Make) -> None:
    _, rig = make(context_tokens=10)
    request = opened(rig, output=[1] * 4)
    rig.engine.append(request, [2])
    rig.wait(lambda: any(c.num_tokens == 10 for c in rig.computed(request)))
    rig.engine.generate(request)
    assert rig.finish(request) == ([], "length")


# --- what goes wrong at the server ---


@pytest.mark.parametrize("what", ["prefill", "draw"])
@pytest.mark.parametrize(
    "error",
    [
        EngineError("no"),
        KeyError("stop_type"),
        InvariantBrokenError("no"),
        TimeoutError(),
        aiohttp.ClientPayloadError("cut"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_goes_wrong_fails_that_request_once_and_alone(
    make: Make, what: str, error: BaseException
) -> None:
    server, rig = make()
    server.errors[what].append(error)
    bad = opened(rig)
    if what == "draw":
        rig.engine.generate(bad)
    assert rig.failure(bad)
    rig.engine.append(bad, [1])
    rig.engine.generate(bad)
    assert len(rig.run(PROMPT, GREEDY)) == LENGTH
    assert kinds(rig, bad) == ["Failed"]
    rig.engine.release(bad)
    assert rig.engine.free_slots == rig.engine.slots
    until(lambda: rig.engine.step_started_s is None)


def test_an_answer_that_ends_without_a_reason_fails_its_request(make: Make) -> None:
    server, rig = make(eos_after=3)
    server.ending = None
    request = rig.open(SequenceSpec(PROMPT, (), Sampling(seed=1, max_tokens=LENGTH, temperature=0.0)))
    rig.engine.generate(request)
    assert "without saying why" in rig.failure(request)
    rig.engine.release(request)


def test_a_server_that_is_gone_fails_the_engine_once(make: Make) -> None:
    server, rig = make()
    server.is_up = False
    server.errors["prefill"].extend([aiohttp.ClientOSError("gone"), aiohttp.ClientOSError("gone")])
    both = [opened(rig), opened(rig)]
    rig.wait(lambda: not server.errors["prefill"])
    event = rig.wait_for(None, Failed)
    assert isinstance(event, Failed) and event.model == "scripted"
    for request in both:
        rig.engine.release(request)
    with pytest.raises(EngineError, match="gone"):
        rig.engine.open(rig.name(), SequenceSpec(PROMPT, (), GREEDY))
    assert len(rig.events(None)) == 1


def test_a_command_that_breaks_the_engine_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rig = make()
    monkeypatch.setattr(rig.engine, "_do_pace", lambda *_: 1 / 0)
    request = opened(rig)
    rig.engine.pace(request, 2.0)
    assert "division" in rig.failure(None)
    with pytest.raises(EngineError, match="division"):
        rig.engine.open(rig.name(), SequenceSpec(PROMPT, (), GREEDY))
    rig.engine.release(request)


def test_a_silent_server_shows_since_when_it_owes_an_answer(make: Make) -> None:
    server, rig = make()
    server.gates["draw"].shut()
    request = opened(rig)
    rig.engine.generate(request)
    server.gates["draw"].wait_for(1)
    since_s = rig.engine.step_started_s
    assert since_s is not None
    settle(rig)
    assert rig.engine.step_started_s == since_s
    server.gates["draw"].open()
    rig.finish(request)
    until(lambda: rig.engine.step_started_s is None)


def test_a_server_that_computes_a_long_prompt_is_not_silent(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOOK_S", 0.01)
    server, rig = make()

    def looked_at() -> float | None:
        """Since when it is silent, once it has been looked at some times more."""
        num = len(server.calls["progress"])
        until(lambda: len(server.calls["progress"]) >= num + 4)
        return rig.engine.step_started_s

    server.gates["prefill"].shut()
    request = opened(rig)
    server.gates["prefill"].wait_for(1)
    since_s = rig.engine.step_started_s
    assert since_s is not None
    assert looked_at() == since_s, "it hangs"
    server.num_computed += 1
    moved_s = looked_at()
    assert moved_s is not None and moved_s > since_s
    server.errors["progress"].append(TimeoutError())
    assert looked_at() == moved_s, "it hangs now"
    server.gates["prefill"].open()
    rig.wait_for(request, Computed)
    until(lambda: rig.engine.step_started_s is None)
    rig.engine.release(request)


def test_a_held_event_is_the_last_of_what_came_before(make: Make) -> None:
    _, rig = make()
    request = opened(rig)
    rig.when_drawn(request, 3, lambda: rig.engine.hold(request))
    rig.engine.generate(request)
    rig.held(request)
    settle(rig)
    last = rig.events(request)[-1]
    assert isinstance(last, Held) and last.num_output == len(rig.outputs(request))
    rig.engine.release(request)
