"""KV of ranges of tokens, out of one sequence and into another: the contract of both engines."""

import pytest

from godwit.errors import InvariantBrokenError
from godwit.ports import Computed, Generated, KvExported, KvImported, SequenceSpec
from godwit.types import KvRange, RequestId, Sampling, TokenId
from tests.engines.rig import Rig
from tests.engines.test_contract import BOTH, GREEDY, LENGTH, prompt

CUT = 5


def exported(rig: Rig, request: RequestId, kv: KvRange) -> bytearray:
    """The KV of a range; the request goes on as it was."""
    num_before = sum(isinstance(event, KvExported) for event in rig.events(request))
    rig.engine.export_kv(request, kv)
    event = rig.wait_for(request, KvExported, occurrences=num_before + 1)
    assert isinstance(event, KvExported) and event.problem is None, event
    return event.data


def source(rig: Rig, sampling: Sampling) -> tuple[RequestId, list[TokenId]]:
    """A request that holds after CUT outputs, and all tokens that have KV."""
    ids = prompt(rig)
    request = rig.open(SequenceSpec(ids, (), sampling))
    rig.engine.generate(request)
    rig.engine.hold(request, CUT)
    rig.held(request)
    return request, [*ids, *rig.outputs(request)][:-1]


def awaiting(rig: Rig, sampling: Sampling, outputs: list[TokenId], kv: KvRange) -> RequestId:
    """A held request that awaits KV."""
    request = rig.name()
    rig.engine.open(request, SequenceSpec(prompt(rig), tuple(outputs), sampling), kv)
    return request


def imported(rig: Rig, request: RequestId) -> KvImported:
    event = rig.wait_for(request, KvImported)
    assert isinstance(event, KvImported)
    return event


@BOTH
@pytest.mark.parametrize("first", [0, 7], ids=["all", "a suffix"])
def test_a_request_goes_on_from_shipped_kv_as_if_it_had_not_moved(
    rig: Rig, sampling: Sampling, first: int
) -> None:
    whole = rig.run(prompt(rig), sampling)
    old, computed = source(rig, sampling)
    kv = KvRange(first, len(computed))
    data = exported(rig, old, kv)
    new = awaiting(rig, sampling, whole[:CUT], kv)
    rig.engine.import_kv(new, data)
    assert imported(rig, new).problem is None
    rig.wait_for(new, Computed)
    assert rig.computed(new)[0].round_tokens == first + 1, "only what was not shipped is computed"
    rig.engine.generate(new)
    rig.engine.generate(old)
    assert rig.finish(new) == (whole[CUT:], "length")
    assert rig.finish(old) == (whole, "length"), "the export disturbed its source"


def test_kv_is_exported_while_its_request_draws(rig: Rig) -> None:
    whole = rig.run(prompt(rig), GREEDY)
    request = rig.open(SequenceSpec(prompt(rig), (), GREEDY))
    kv = KvRange(0, len(prompt(rig)))
    rig.when_drawn(request, 2, lambda: rig.engine.export_kv(request, kv))
    rig.engine.generate(request)
    assert rig.finish(request) == (whole, "length")
    kinds = [type(event) for event in rig.events(request)]
    assert kinds[kinds.index(KvExported) :].count(Generated) == LENGTH - 3


def test_tokens_before_awaited_kv_are_computed_meanwhile_and_those_after_it_wait(rig: Rig) -> None:
    whole = rig.run(prompt(rig), GREEDY)
    old, computed = source(rig, GREEDY)
    kv = KvRange(7, len(computed))
    data = exported(rig, old, kv)
    new = awaiting(rig, GREEDY, whole[:CUT], kv)
    rig.engine.append(new, whole[CUT : CUT + 2])
    rig.engine.generate(new)
    rig.engine.generate(old)
    rig.finish(old)
    assert not rig.outputs(new)
    rig.engine.import_kv(new, data)
    assert rig.finish(new) == (whole[CUT + 2 :], "length")


@pytest.mark.parametrize("what", ["did not come", "is cut", "is of another range"])
def test_without_the_awaited_kv_the_tokens_are_computed(rig: Rig, what: str) -> None:
    whole = rig.run(prompt(rig), GREEDY)
    old, computed = source(rig, GREEDY)
    kv = KvRange(4, len(computed))
    data: bytearray | None = exported(rig, old, kv)
    if what == "did not come":
        data = None
    elif what == "is cut":
        data = data and data[: len(data) // 2]
    else:
        data = exported(rig, old, KvRange(4, len(computed) - 1))
    rig.engine.release(old)
    new = awaiting(rig, GREEDY, whole[:CUT], kv)
    rig.engine.import_kv(new, data)
    assert imported(rig, new).problem
    rig.engine.import_kv(new, data)
    rig.engine.generate(new)
    assert rig.finish(new) == (whole[CUT:], "length")
    assert sum(isinstance(event, KvImported) for event in rig.events(new)) == 1


def test_kv_that_is_not_computed_yet_is_not_exported(rig: Rig) -> None:
    request, computed = source(rig, GREEDY)
    rig.engine.export_kv(request, KvRange(0, len(computed) + 1))
    event = rig.wait_for(request, KvExported)
    assert isinstance(event, KvExported) and event.problem and not event.data
    rig.engine.release(request)


def test_kv_of_unknown_requests_is_ignored(rig: Rig) -> None:
    rig.engine.export_kv(RequestId("nobody"), KvRange(0, 1))
    rig.engine.import_kv(RequestId("nobody"), bytearray(8))
    assert len(rig.run(prompt(rig), GREEDY)) == LENGTH


def test_the_last_token_cannot_be_awaited(rig: Rig) -> None:
    ids = prompt(rig)
    with pytest.raises(InvariantBrokenError):
        rig.engine.open(rig.name(), SequenceSpec(ids, (), GREEDY), KvRange(0, len(ids)))
