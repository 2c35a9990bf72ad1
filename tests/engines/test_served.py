"""Commands, failures and the end of an engine over a server, at moments that a script chooses."""

import threading
import time
from collections.abc import Callable, Iterator

import aiohttp
import pytest

from godwit.engines.served import ServedEngine
from godwit.errors import EngineError, InvariantBrokenError, NoFreeSlotError
from godwit.ports import Computed, Ended, Failed, Generated, Held, KvExported, KvImported, SequenceSpec
from godwit.types import KvOffer, KvRange, RequestId, Sampling, TokenId
from tests.engines.rig import Rig
from tests.engines.scriptedserver import ScriptedServer, packed
from tests.patience import DEADLINE_S

LENGTH = 8
GREEDY = Sampling(seed=1, max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
PROMPT: tuple[TokenId, ...] = (5, 6, 7, 8, 9)
ALL = KvRange(0, len(PROMPT) - 1)
Make = Callable[..., tuple[ScriptedServer, Rig]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes servers with their engines, which are closed at the end."""
    made: list[tuple[ScriptedServer, Rig]] = []

    def make_one(*, ships: bool = True, **options: int) -> tuple[ScriptedServer, Rig]:
        server = ScriptedServer(**options)
        made.append((server, Rig(ServedEngine(server, server if ships else None))))
        return made[-1]

    yield make_one
    for server, rig in made:
        for gate in list(server.gates.values()):
            gate.open()
        rig.engine.close()
        assert server.is_closed


def opened(rig: Rig, *, output: list[TokenId] | None = None) -> RequestId:
    return rig.open(SequenceSpec(PROMPT, tuple(output or ()), GREEDY))


def awaiting(rig: Rig) -> RequestId:
    """A request that awaits the KV of all tokens but the last."""
    request = rig.name()
    rig.engine.open(request, SequenceSpec(PROMPT, (), GREEDY), KvOffer(ALL, "scripted", 0.0, len(PROMPT)))
    return request


def settle(rig: Rig) -> None:
    """Wait until the engine has done all that it was told before."""
    probe = rig.name()
    rig.engine.open(probe, SequenceSpec(PROMPT, (), GREEDY))
    rig.engine.hold(probe)
    rig.held(probe)
    rig.engine.release(probe)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what no event tells."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def is_closing(rig: Rig) -> bool:
    """Whether `close` has begun: then nothing is opened."""
    probe = rig.name()
    try:
        rig.engine.open(probe, SequenceSpec(PROMPT, (), GREEDY))
    except EngineError:
        return True
    rig.engine.release(probe)
    return False


def kinds(rig: Rig, request: RequestId) -> list[str]:
    return [type(event).__name__ for event in rig.events(request)]


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
    rig.engine.generate(request)
    rig.engine.hold(request, 6)
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


# --- KV ---


def test_generate_and_hold_before_the_kv_came_do_not_lose_it(make: Make) -> None:
    server, rig = make()
    whole = rig.run(PROMPT, GREEDY)
    server.gates["import_kv"].shut()
    request = awaiting(rig)
    rig.engine.generate(request)
    rig.engine.import_kv(request, ALL, packed(PROMPT[:-1]))
    server.gates["import_kv"].wait_for(1)
    rig.engine.hold(request)
    rig.held(request)
    rig.engine.generate(request)
    settle(rig)
    assert not rig.outputs(request)
    rig.engine.stop_awaiting(request)
    server.gates["import_kv"].open()
    assert rig.finish(request) == (whole, "length")
    taken = [e for e in rig.events(request) if isinstance(e, KvImported)]
    assert [(e.kv, e.problem, e.is_last) for e in taken] == [(ALL, None, True)]
    assert taken[0].num_bytes == len(PROMPT[:-1]) * server.bytes_per_token


def test_a_block_that_does_not_follow_is_not_waited_for(make: Make) -> None:
    _, rig = make()
    request = awaiting(rig)
    rig.engine.import_kv(request, KvRange(2, 4), packed(PROMPT[:4]))
    rig.engine.stop_awaiting(request)
    rig.engine.generate(request)
    assert len(rig.finish(request)[0]) == LENGTH
    assert kinds(rig, request).count("KvImported") == 1


@pytest.mark.parametrize(
    "error", [EngineError("no"), TimeoutError(), aiohttp.ClientOSError("cut")], ids=lambda e: type(e).__name__
)
def test_kv_that_cannot_be_had_is_computed(make: Make, error: BaseException) -> None:
    server, rig = make()
    server.errors["import_kv"].append(error)
    request = awaiting(rig)
    rig.engine.import_kv(request, ALL, packed(PROMPT[:-1]))
    event = rig.wait_for(request, KvImported)
    assert isinstance(event, KvImported) and event.problem and event.is_last and event.num_bytes == 0
    rig.engine.import_kv(request, ALL, packed(PROMPT[:-1]))
    rig.wait_for(request, Computed)
    rig.engine.generate(request)
    assert len(rig.finish(request)[0]) == LENGTH


def test_without_a_way_for_kv_what_is_awaited_is_computed(make: Make) -> None:
    _, rig = make(ships=False)
    assert rig.engine.kv_layout is None
    for stops in (False, True):
        request = awaiting(rig)
        if stops:
            rig.engine.stop_awaiting(request)
        else:
            rig.engine.import_kv(request, ALL, packed(PROMPT[:-1]))
        rig.engine.generate(request)
        assert len(rig.finish(request)[0]) == LENGTH
        rig.engine.export_kv(request, ALL)
    request = opened(rig)
    rig.engine.export_kv(request, ALL)
    event = rig.wait_for(request, KvExported)
    assert isinstance(event, KvExported) and event.problem
    rig.engine.release(request)


def test_an_ended_sequence_is_exported_and_a_released_one_is_not(make: Make) -> None:
    server, rig = make()
    request = opened(rig)
    rig.engine.generate(request)
    rig.wait_for(request, Ended)
    whole = KvRange(0, len(PROMPT) + LENGTH - 1)
    rig.engine.export_kv(request, whole)
    event = rig.wait_for(request, KvExported)
    assert isinstance(event, KvExported)
    assert event.data == packed([*PROMPT, *rig.outputs(request)][:-1])
    for kv in (KvRange(0, len(PROMPT) + LENGTH), KvRange(3, 3)):
        rig.engine.export_kv(request, kv)
    rig.wait_for(request, KvExported, occurrences=3)
    problems = [e.problem for e in rig.events(request) if isinstance(e, KvExported)]
    assert problems[0] is None and all(problems[1:])
    server.gates["export_kv"].shut()
    rig.engine.export_kv(request, whole)
    server.gates["export_kv"].wait_for(2)
    num_before = len(rig.events(request))
    rig.engine.release(request)
    server.gates["export_kv"].open()
    settle(rig)
    assert len(rig.events(request)) == num_before


# --- the end ---


@pytest.mark.parametrize("what", ["prefill", "draw", "import_kv", "export_kv"])
def test_close_does_not_wait_for_a_server_that_is_silent(make: Make, what: str) -> None:
    server, rig = make()
    server.gates[what].shut()
    request = awaiting(rig) if what == "import_kv" else opened(rig)
    rig.engine.import_kv(request, ALL, packed(PROMPT[:-1]))
    if what == "draw":
        rig.engine.generate(request)
    if what == "export_kv":
        rig.engine.export_kv(request, ALL)
    server.gates[what].wait_for(1)
    num_before = len(rig.events(request))
    rig.engine.close()
    rig.engine.close()
    assert server.is_closed
    for command in (rig.engine.generate, rig.engine.hold, rig.engine.release, rig.engine.stop_awaiting):
        command(request)
    assert len([e for e in rig.events(request)[num_before:] if not isinstance(e, Computed)]) == 0
    with pytest.raises(EngineError, match="closed"):
        rig.engine.open(rig.name(), SequenceSpec(PROMPT, (), GREEDY))


def test_an_engine_that_was_not_started_is_closed(make: Make) -> None:
    del make
    server = ScriptedServer()
    engine = ServedEngine(server)
    engine.open(RequestId("r"), SequenceSpec(PROMPT, (), GREEDY))
    engine.close()
    assert server.is_closed
    engine.release(RequestId("r"))


def test_the_model_stays_until_those_that_read_it_are_done(make: Make) -> None:
    """Tokenizing may run in any thread; the vocabulary must not be freed meanwhile."""
    server, rig = make()
    inside, go_on = threading.Event(), threading.Event()
    seen: list[bool] = []

    def slow(text: str, *, add_special: bool) -> list[TokenId]:  # noqa: ARG001
        inside.set()
        go_on.wait(DEADLINE_S)
        seen.append(server.is_closed)
        return []

    server.tokenize = slow  # type: ignore[method-assign]
    reader = threading.Thread(target=lambda: rig.engine.tokenize("x", add_special=True))
    closer = threading.Thread(target=rig.engine.close)
    reader.start()
    assert inside.wait(DEADLINE_S)
    closer.start()
    until(lambda: is_closing(rig))
    go_on.set()
    reader.join()
    closer.join()
    assert seen == [False]
    with pytest.raises(NoFreeSlotError):
        rig.engine.tokenize("x", add_special=True)


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
