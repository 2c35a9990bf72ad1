"""KV and the end of an engine over a server, at moments that a script chooses."""

import threading

import aiohttp
import pytest

from godwit.engines.served import ServedEngine
from godwit.errors import EngineError, NoFreeSlotError
from godwit.ports import Computed, Ended, KvExported, KvImported, SequenceSpec
from godwit.types import KvRange, RequestId, TokenId
from tests.engines.rig import Rig
from tests.engines.scriptedserver import ScriptedServer, packed
from tests.engines.servedrig import ALL, GREEDY, LENGTH, PROMPT, Make, awaiting, kinds, opened, settle, until
from tests.patience import DEADLINE_S

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


def is_closing(rig: Rig) -> bool:
    """Whether `close` has begun: then nothing is opened."""
    probe = rig.name()
    try:
        rig.engine.open(probe, SequenceSpec(PROMPT, (), GREEDY))
    except EngineError:
        return True
    rig.engine.release(probe)
    return False


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
