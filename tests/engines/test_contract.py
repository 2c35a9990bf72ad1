"""The Engine contract of ports.py, the same for the fake and for a real model."""

import pytest

from godwit.errors import BadRequestError, ConflictError, ContextTooLongError, NoFreeSlotError
from godwit.ports import Computed, Ended, Generated, SequenceSpec
from godwit.types import ChatMessage, RequestId, Sampling, TokenId
from tests.engines.conftest import CONTEXT_TOKENS, SLOTS
from tests.engines.rig import Rig

LENGTH = 12
GREEDY = Sampling(seed=1, max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
WARM = Sampling(seed=7, max_tokens=LENGTH, temperature=0.9, top_p=0.95, presence_penalty=0.4, ignore_eos=True)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])


def prompt(rig: Rig, text: str = "Describe a day in the life of a baker.") -> tuple[TokenId, ...]:
    rendered = rig.engine.render([ChatMessage("user", text)])
    return tuple(rig.engine.tokenize(rendered, add_special=True))


def test_generates_each_index_once_and_ends_by_length(rig: Rig) -> None:
    request = rig.open(SequenceSpec(prompt(rig), (), GREEDY))
    rig.engine.generate(request)
    outputs, reason = rig.finish(request)
    assert (len(outputs), reason) == (LENGTH, "length")
    for event in rig.events(request):
        if isinstance(event, Generated):
            assert event.token.text == rig.engine.piece(event.token.id)


@BOTH
def test_a_prefix_continues_as_if_it_had_not_moved(rig: Rig, sampling: Sampling) -> None:
    whole = rig.run(prompt(rig), sampling)
    for cut in (1, 9, LENGTH - 1):
        assert rig.run(prompt(rig), sampling, whole[:cut]) == whole[cut:]


@BOTH
def test_a_hold_told_in_advance_stops_exactly_there_and_goes_on_exactly(rig: Rig, sampling: Sampling) -> None:
    whole = rig.run(prompt(rig), sampling)
    request = rig.open(SequenceSpec(prompt(rig), (), sampling))
    rig.engine.hold(request, 5)
    assert rig.held(request) == 0, "a held sequence is held where it is"
    rig.engine.generate(request)
    rig.engine.hold(request, 6)
    assert rig.held(request, occurrences=2) == 6
    assert rig.outputs(request) == whole[:6]
    rig.engine.generate(request)
    rig.engine.hold(request, 2)
    reached = rig.held(request, occurrences=3)
    assert reached >= 6
    rig.engine.generate(request)
    assert rig.finish(request) == (whole, "length")


def test_a_hold_now_stops_while_drawing_and_generate_cancels_one(rig: Rig) -> None:
    whole = rig.run(prompt(rig), GREEDY)
    request = rig.open(SequenceSpec(prompt(rig), (), GREEDY))
    rig.when_drawn(request, 2, lambda: rig.engine.hold(request))
    rig.engine.generate(request)
    assert rig.held(request) == 3
    assert rig.outputs(request) == whole[:3]
    rig.engine.generate(request)
    rig.engine.hold(request, LENGTH - 1)
    rig.engine.generate(request)
    assert rig.finish(request) == (whole, "length")


def test_a_hold_while_prefilling_lets_the_round_end(rig: Rig) -> None:
    whole = rig.run(prompt(rig), GREEDY)
    request = rig.open(SequenceSpec(prompt(rig), (), GREEDY))
    rig.engine.generate(request)
    rig.engine.hold(request)
    assert rig.held(request) in (0, 1)
    rig.engine.generate(request)
    assert rig.finish(request) == (whole, "length")


@BOTH
def test_rounds_compute_only_what_is_new_and_end_as_one_run(rig: Rig, sampling: Sampling) -> None:
    ids = prompt(rig)
    whole = rig.run(ids, sampling)
    request = rig.open(SequenceSpec(ids, tuple(whole[:4]), sampling))
    rig.wait_for(request, Computed)
    rig.engine.append(request, whole[4:7])
    rig.wait_for(request, Computed, occurrences=2)
    rig.engine.append(request, whole[7:8])
    rig.wait_for(request, Computed, occurrences=3)
    assert [(c.num_tokens - len(ids), c.round_tokens) for c in rig.computed(request)] == [
        (4, len(ids) + 4),
        (7, 3),
        (8, 1),
    ]
    assert all(c.seconds >= 0 for c in rig.computed(request))
    rig.engine.append(request, whole[8:9])
    rig.engine.generate(request)
    assert rig.finish(request) == (whole[9:], "length")


def test_tokens_appended_during_a_round_make_the_next_one(rig: Rig) -> None:
    ids = prompt(rig)
    whole = rig.run(ids, GREEDY)
    request = rig.open(SequenceSpec(ids, (), GREEDY))
    for token in whole[:6]:
        rig.engine.append(request, [token])
    rig.wait(
        lambda: rig.computed(request)[-1:] != [] and rig.computed(request)[-1].num_tokens == len(ids) + 6
    )
    assert sum(c.round_tokens for c in rig.computed(request)) == len(ids) + 6
    rig.engine.generate(request)
    assert rig.finish(request) == (whole[6:], "length")


def test_an_empty_append_is_a_round_of_nothing(rig: Rig) -> None:
    request = rig.open(SequenceSpec(prompt(rig), (), GREEDY))
    rig.wait_for(request, Computed)
    rig.engine.append(request, [])
    rig.wait_for(request, Computed, occurrences=2)
    assert rig.computed(request)[-1].round_tokens == 0
    rig.engine.release(request)


def test_requests_side_by_side_do_not_disturb_each_other(rig: Rig) -> None:
    texts = ["Write a poem about the sea.", "List ten animals.", "Explain how a bicycle works."]
    alone = [rig.run(prompt(rig, text), GREEDY) for text in texts]
    requests = [rig.open(SequenceSpec(prompt(rig, text), (), GREEDY)) for text in texts]
    for request in requests:
        rig.engine.generate(request)
    assert [rig.finish(request)[0] for request in requests] == alone


def test_slots_are_counted_at_once_and_a_released_one_is_reused(rig: Rig) -> None:
    spec = SequenceSpec(prompt(rig), (), GREEDY)
    requests = [rig.open(spec) for _ in range(SLOTS)]
    assert rig.engine.free_slots == 0
    with pytest.raises(NoFreeSlotError):
        rig.engine.open(rig.name(), spec)
    rig.engine.release(requests[0])
    assert rig.engine.free_slots == 1
    with pytest.raises(ConflictError):
        rig.engine.open(requests[1], spec)
    late = rig.open(spec)
    rig.engine.generate(late)
    outputs, _ = rig.finish(late)
    assert len(outputs) == LENGTH
    for request in requests:
        rig.engine.release(request)


def test_no_event_follows_a_release(rig: Rig) -> None:
    spec = SequenceSpec(prompt(rig), (), GREEDY)
    gone, other = rig.open(spec), rig.open(spec)
    rig.engine.generate(gone)
    rig.wait_for(gone, Generated)
    rig.engine.release(gone)
    rig.engine.generate(other)
    rig.wait_for(other, Generated)
    seen = len(rig.events(gone))
    rig.finish(other)
    assert len(rig.events(gone)) == seen


def test_commands_for_unknown_requests_are_ignored(rig: Rig) -> None:
    nobody = RequestId("nobody")
    rig.engine.generate(nobody)
    rig.engine.hold(nobody)
    rig.engine.append(nobody, [1])
    rig.engine.pace(nobody, 2.0)
    rig.engine.release(nobody)
    assert len(rig.run(prompt(rig), GREEDY)) == LENGTH


@pytest.mark.parametrize("num_output", [0, 3])
def test_nothing_is_drawn_where_max_tokens_are_there_already(rig: Rig, num_output: int) -> None:
    sampling = Sampling(seed=1, max_tokens=num_output)
    request = rig.open(SequenceSpec(prompt(rig), prompt(rig)[:num_output], sampling))
    rig.engine.generate(request)
    assert rig.finish(request) == ([], "length")
    assert Ended(request, num_output, "length") in rig.events(request)


def test_a_full_context_ends_by_length(rig: Rig) -> None:
    ids = (prompt(rig) * 40)[: CONTEXT_TOKENS - 5]
    outputs = rig.run(ids, Sampling(seed=1, max_tokens=100, temperature=0.0, ignore_eos=True))
    assert len(outputs) == 5


def test_appending_to_a_generating_request_fails_it_and_it_alone(rig: Rig) -> None:
    spec = SequenceSpec(prompt(rig), (), GREEDY)
    bad, good = rig.open(spec), rig.open(spec)
    rig.when_drawn(bad, 2, lambda: rig.engine.append(bad, [1]))
    rig.engine.generate(bad)
    rig.engine.generate(good)
    assert "generating" in rig.failure(bad)
    assert len(rig.finish(good)[0]) == LENGTH
    rig.engine.release(bad)


def test_appending_more_than_the_context_fails_the_request(rig: Rig) -> None:
    request = rig.open(SequenceSpec(prompt(rig), (), GREEDY))
    rig.engine.append(request, [5] * CONTEXT_TOKENS)
    assert str(CONTEXT_TOKENS) in rig.failure(request)
    rig.engine.release(request)


def test_check_refuses_what_cannot_be_served(rig: Rig) -> None:
    check = rig.engine.check
    ok = prompt(rig)
    with pytest.raises(ContextTooLongError):
        check(SequenceSpec((1,) * CONTEXT_TOKENS, (), GREEDY))
    for ids, sampling, param in [
        ((), GREEDY, "prompt"),
        ((-1,), GREEDY, "prompt"),
        ((10**7,), GREEDY, "prompt"),
        (ok, Sampling(seed=1, max_tokens=5, top_p=1.5), "top_p"),
        (ok, Sampling(seed=1, max_tokens=5, temperature=float("nan")), "temperature"),
        (ok, Sampling(seed=1, max_tokens=5, repetition_penalty=0.0), "repetition_penalty"),
        (ok, Sampling(seed=1, max_tokens=5, num_logprobs=1000), "logprobs"),
        (ok, Sampling(seed=1, max_tokens=5, logit_bias=((10**7, 1.0),)), "logit_bias"),
        (ok, Sampling(seed=1, max_tokens=5, grammar="x" * 100_000), "grammar"),
    ]:
        with pytest.raises(BadRequestError) as caught:
            check(SequenceSpec(ids, (), sampling))
        assert caught.value.param == param


def test_a_text_that_can_fit_nowhere_is_not_even_tokenized(llama_rig: Rig) -> None:
    """Tokenizing a long prompt would hold up a worker's event loop until the head takes it for dead."""
    with pytest.raises(ContextTooLongError, match="8000000 bytes"):
        llama_rig.engine.tokenize("a" * 8_000_000, add_special=True)
    longest = " " * (400 * 30)
    assert llama_rig.engine.tokenize(longest, add_special=True)


def test_pieces_of_a_text_join_to_the_text(rig: Rig) -> None:
    text = "Grüße, 世界! 😀 naïve\n\tcafé"
    ids = rig.engine.tokenize(text, add_special=False)
    assert b"".join(rig.engine.piece(token) for token in ids) == text.encode()


def test_logprobs_name_the_chosen_token_first_then_the_best(rig: Rig) -> None:
    request = rig.open(SequenceSpec(prompt(rig), (), Sampling(seed=1, max_tokens=3, num_logprobs=4)))
    rig.engine.generate(request)
    rig.finish(request)
    for event in rig.events(request):
        if isinstance(event, Generated):
            chosen, *best = event.token.alternatives
            assert chosen.id == event.token.id
            assert len(best) == 4
            assert [b.logprob for b in best] == sorted((b.logprob for b in best), reverse=True)
            assert best[0].logprob >= chosen.logprob
