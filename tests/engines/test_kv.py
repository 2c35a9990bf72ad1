"""KV of ranges of tokens, out of one sequence and into another: the contract of both engines."""

import pytest

from godwit.errors import InvariantBrokenError
from godwit.ports import Computed, Generated, KvExported, KvImported, SequenceSpec
from godwit.types import KvOffer, KvRange, RequestId, Sampling, TokenId
from tests.engines.rig import Rig
from tests.engines.test_contract import BOTH, GREEDY, LENGTH, prompt

CUT = 5


def exported(kv_rig: Rig, request: RequestId, kv: KvRange) -> bytearray:
    """The KV of a range; the request goes on as it was."""
    num_before = sum(isinstance(event, KvExported) for event in kv_rig.events(request))
    kv_rig.engine.export_kv(request, kv)
    event = kv_rig.wait_for(request, KvExported, occurrences=num_before + 1)
    assert isinstance(event, KvExported) and event.problem is None, event
    return event.data


def source(kv_rig: Rig, sampling: Sampling) -> tuple[RequestId, list[TokenId]]:
    """A request that holds after CUT outputs, and all tokens that have KV."""
    ids = prompt(kv_rig)
    request = kv_rig.open(SequenceSpec(ids, (), sampling))
    kv_rig.engine.generate(request)
    kv_rig.engine.hold(request, CUT)
    kv_rig.held(request)
    return request, [*ids, *kv_rig.outputs(request)][:-1]


def offered(kv: KvRange, share: float = 0.0, block_tokens: int = 16) -> KvOffer:
    return KvOffer(kv, "", share, block_tokens)


def awaiting(
    kv_rig: Rig, sampling: Sampling, outputs: list[TokenId], kv: KvRange, share: float = 0.0
) -> RequestId:
    """A held request that awaits KV."""
    request = kv_rig.name()
    spec = SequenceSpec(prompt(kv_rig), tuple(outputs), sampling)
    kv_rig.engine.open(request, spec, offered(kv, share, 4))
    return request


def imported(kv_rig: Rig, request: RequestId, *, occurrences: int = 1) -> KvImported:
    event = kv_rig.wait_for(request, KvImported, occurrences=occurrences)
    assert isinstance(event, KvImported)
    return event


@BOTH
@pytest.mark.parametrize("first", [0, 7], ids=["all", "a suffix"])
def test_a_request_goes_on_from_shipped_kv_as_if_it_had_not_moved(
    kv_rig: Rig, sampling: Sampling, first: int
) -> None:
    whole = kv_rig.run(prompt(kv_rig), sampling)
    old, computed = source(kv_rig, sampling)
    kv = KvRange(first, len(computed))
    data = exported(kv_rig, old, kv)
    new = awaiting(kv_rig, sampling, whole[:CUT], kv)
    kv_rig.engine.import_kv(new, kv, data)
    event = imported(kv_rig, new)
    assert (event.problem, event.kv, event.is_last, event.computed.tokens) == (None, kv, False, first)
    kv_rig.engine.stop_awaiting(new)
    assert imported(kv_rig, new, occurrences=2).is_last
    kv_rig.wait_for(new, Computed)
    assert kv_rig.computed(new)[0].round_tokens == 1, "only what was not shipped is computed"
    kv_rig.engine.generate(new)
    kv_rig.engine.generate(old)
    assert kv_rig.finish(new) == (whole[CUT:], "length")
    assert kv_rig.finish(old) == (whole, "length"), "the export disturbed its source"


@BOTH
@pytest.mark.parametrize("share", [0.0, 0.9], ids=["in order", "backwards"])
def test_kv_comes_in_blocks(kv_rig: Rig, sampling: Sampling, share: float) -> None:
    whole = kv_rig.run(prompt(kv_rig), sampling)
    old, computed = source(kv_rig, sampling)
    starts = list(range(0, len(computed), 4))
    ranges = [KvRange(first, min(first + 4, len(computed))) for first in starts]
    blocks = [(kv, exported(kv_rig, old, kv)) for kv in ranges]
    kv_rig.engine.release(old)
    kv = KvRange(0, len(computed))
    new = awaiting(kv_rig, sampling, whole[:CUT], kv, share)
    for one, data in blocks[::-1] if share else blocks:
        kv_rig.engine.import_kv(new, one, data)
    if not share:
        kv_rig.engine.stop_awaiting(new)
    kv_rig.engine.generate(new)
    assert kv_rig.finish(new) == (whole[CUT:], "length")
    events = [event for event in kv_rig.events(new) if isinstance(event, KvImported)]
    assert [event.is_last for event in events] == [False] * (len(events) - 1) + [True]
    taken = sum(event.kv.last - event.kv.first for event in events)
    assert taken + sum(event.computed.tokens for event in events) == len(computed)
    assert taken == len(computed) or share > 0


def test_a_request_that_may_compute_it_all_does_when_no_kv_comes(kv_rig: Rig) -> None:
    whole = kv_rig.run(prompt(kv_rig), GREEDY)
    new = awaiting(kv_rig, GREEDY, whole[:CUT], KvRange(0, len(prompt(kv_rig))), 1.0)
    event = imported(kv_rig, new)
    assert event.is_last and event.kv.first == event.kv.last == event.computed.tokens == len(prompt(kv_rig))
    kv_rig.engine.import_kv(new, KvRange(0, 4), bytearray(4))
    kv_rig.engine.generate(new)
    assert kv_rig.finish(new) == (whole[CUT:], "length")


def test_kv_is_exported_while_its_request_draws(kv_rig: Rig) -> None:
    whole = kv_rig.run(prompt(kv_rig), GREEDY)
    request = kv_rig.open(SequenceSpec(prompt(kv_rig), (), GREEDY))
    kv = KvRange(0, len(prompt(kv_rig)))
    kv_rig.when_drawn(request, 2, lambda: kv_rig.engine.export_kv(request, kv))
    kv_rig.engine.generate(request)
    assert kv_rig.finish(request) == (whole, "length")
    kinds = [type(event) for event in kv_rig.events(request)]
    assert kinds[kinds.index(KvExported) :].count(Generated) == LENGTH - 3


def test_tokens_before_awaited_kv_are_computed_meanwhile_and_those_after_it_wait(kv_rig: Rig) -> None:
    whole = kv_rig.run(prompt(kv_rig), GREEDY)
    old, computed = source(kv_rig, GREEDY)
    kv = KvRange(7, len(computed))
    data = exported(kv_rig, old, kv)
    new = awaiting(kv_rig, GREEDY, whole[:CUT], kv)
    kv_rig.engine.append(new, whole[CUT : CUT + 2])
    kv_rig.engine.generate(new)
    kv_rig.engine.generate(old)
    kv_rig.finish(old)
    assert not kv_rig.outputs(new)
    kv_rig.engine.import_kv(new, kv, data)
    kv_rig.engine.stop_awaiting(new)
    assert kv_rig.finish(new) == (whole[CUT + 2 :], "length")


@pytest.mark.parametrize("what", ["did not come", "is cut", "is of another range"])
def test_without_the_awaited_kv_the_tokens_are_computed(kv_rig: Rig, what: str) -> None:
    whole = kv_rig.run(prompt(kv_rig), GREEDY)
    old, computed = source(kv_rig, GREEDY)
    kv = KvRange(4, len(computed))
    data = exported(kv_rig, old, kv)
    if what == "is cut":
        data = data[: len(data) // 2]
    elif what == "is of another range":
        data = exported(kv_rig, old, KvRange(4, len(computed) - 1))
    kv_rig.engine.release(old)
    new = awaiting(kv_rig, GREEDY, whole[:CUT], kv)
    if what == "did not come":
        kv_rig.engine.stop_awaiting(new)
    else:
        kv_rig.engine.import_kv(new, kv, data)
    event = imported(kv_rig, new)
    assert event.is_last and (event.problem is None) == (what == "did not come")
    kv_rig.engine.import_kv(new, kv, data)
    kv_rig.engine.generate(new)
    assert kv_rig.finish(new) == (whole[CUT:], "length")
    assert sum(isinstance(event, KvImported) for event in kv_rig.events(new)) == 1


def test_kv_that_is_not_computed_yet_is_not_exported(kv_rig: Rig) -> None:
    request, computed = source(kv_rig, GREEDY)
    kv_rig.engine.export_kv(request, KvRange(0, len(computed) + 1))
    event = kv_rig.wait_for(request, KvExported)
    assert isinstance(event, KvExported) and event.problem and not event.data
    kv_rig.engine.release(request)


def test_kv_of_unknown_requests_is_ignored(kv_rig: Rig) -> None:
    kv_rig.engine.export_kv(RequestId("nobody"), KvRange(0, 1))
    kv_rig.engine.import_kv(RequestId("nobody"), KvRange(0, 1), bytearray(8))
    kv_rig.engine.stop_awaiting(RequestId("nobody"))
    assert len(kv_rig.run(prompt(kv_rig), GREEDY)) == LENGTH


def test_the_last_token_cannot_be_awaited(kv_rig: Rig) -> None:
    ids = prompt(kv_rig)
    with pytest.raises(InvariantBrokenError):
        kv_rig.engine.open(kv_rig.name(), SequenceSpec(ids, (), GREEDY), offered(KvRange(0, len(ids))))
