"""The fake's own promises: any change in the tokens before changes everything after."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from godwit.engines.fake import NUM_VOCAB, FakeOptions, FakeRunner, fake_info
from godwit.engines.runner import Span
from godwit.errors import BadRequestError, InvariantBrokenError
from godwit.ports import SequenceSpec
from godwit.types import ModelName, Sampling, TokenId

GREEDY = Sampling(seed=1, max_tokens=100, temperature=0.0)
IDS = st.lists(st.integers(0, NUM_VOCAB - 2), min_size=2, max_size=12)


def make(options: FakeOptions | None = None) -> FakeRunner:
    options = options or FakeOptions()
    return FakeRunner(fake_info(ModelName("fake"), 1, 1000, options, is_loaded=True), 1, options)


def continuation(
    ids: list[TokenId],
    sampling: Sampling = GREEDY,
    *,
    num_prompt: int | None = None,
    length: int = 12,
    options: FakeOptions | None = None,
) -> list[TokenId]:
    runner = make(options)
    cut = num_prompt or len(ids)
    runner.open(0, SequenceSpec(tuple(ids[:cut]), tuple(ids[cut:]), sampling))
    known, drawn = list(ids), []
    computed = 0
    for _ in range(length):
        runner.forward([Span(0, computed, known[computed:], True)])
        computed = len(known)
        token = runner.draw(0)
        assert token is not None
        known.append(token.id)
        drawn.append(token.id)
    return drawn


@given(IDS, st.data())
def test_a_lost_doubled_or_changed_token_changes_what_follows(
    ids: list[TokenId], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    for other in (
        ids[:at] + ids[at + 1 :],
        [*ids[:at], ids[at], *ids[at:]],
        [*ids[:at], ids[at] ^ 1, *ids[at + 1 :]],
    ):
        assert continuation(other)[1:] != continuation(ids)[1:]


def test_the_seed_counts_where_there_is_a_temperature() -> None:
    ids = [1, 2, 3]
    assert continuation(ids, Sampling(seed=1, max_tokens=9, temperature=0.0)) == continuation(ids)
    assert continuation(ids, Sampling(seed=2, max_tokens=9, temperature=0.0)) == continuation(ids)
    assert continuation(ids, Sampling(seed=1, max_tokens=9)) != continuation(
        ids, Sampling(seed=2, max_tokens=9)
    )


def test_penalties_make_the_end_of_the_prompt_count() -> None:
    penal = Sampling(seed=1, max_tokens=9, presence_penalty=0.5)
    assert continuation([1, 2, 3], penal, num_prompt=2) != continuation([1, 2, 3], penal, num_prompt=3)
    assert continuation([1, 2, 3], GREEDY, num_prompt=2) == continuation([1, 2, 3], GREEDY, num_prompt=3)


def test_its_text_is_utf8_and_some_characters_are_split_over_two_tokens() -> None:
    runner = make()
    pieces = [runner.piece(t) for t in continuation([5], length=400)]
    text = b"".join(pieces)
    assert text.decode(errors="ignore").encode() == text[: len(text.decode(errors="ignore").encode())]
    lone = sum(1 for piece in pieces if piece.decode(errors="ignore") == "")
    assert lone > 20


def test_a_gap_in_the_kv_is_an_error_at_once() -> None:
    runner = make()
    runner.open(0, SequenceSpec((1, 2), (), GREEDY))
    with pytest.raises(InvariantBrokenError):
        runner.forward([Span(0, 1, [2], True)])


@pytest.mark.parametrize("field", ["grammar", "json_schema"])
def test_it_refuses_grammars(field: str) -> None:
    sampling = replace(GREEDY, **{field: "{}"})
    with pytest.raises(BadRequestError) as caught:
        make().check(SequenceSpec((1,), (), sampling))
    assert caught.value.param == field
