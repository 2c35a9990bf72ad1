"""What engines declare to carry across a move: docs/engines.md has it; GODWIT_REWRITE=1 renews it."""

import pytest
from msgspec.json import decode, encode
from msgspec.structs import fields

from godwit.engines import ENGINES, describe
from godwit.engines.fake import FakeOptions
from godwit.engines.table import COLUMNS, render
from godwit.types import (
    CARRIES_ALL,
    Carries,
    ModelInfo,
    Promise,
    Sampling,
    both,
    broken_promises,
    promises,
)
from tests.engines.test_fake import continuation
from tests.pages import DOCS, check_generated

PAGE = DOCS / "engines.md"
NOTHING = Carries(seed=False, penalties=False, grammar=False, kv=False)
SEEDED = Sampling(seed=1, max_tokens=100)
PENALIZED = Sampling(seed=1, max_tokens=100, temperature=0.0, presence_penalty=0.5)


def test_the_page_has_the_table_as_it_is() -> None:
    check_generated(PAGE, "carries", render())


def test_the_table_has_a_row_for_every_engine_and_a_column_for_everything_that_may_be_lost() -> None:
    rows = render().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == sorted(ENGINES)
    assert list(COLUMNS) == [field.name for field in fields(Carries)]
    for row, (_, kind) in zip(rows, sorted(ENGINES.items()), strict=True):
        assert row.count("**no**") == sum(not getattr(kind.carries, name) for name in COLUMNS)


def test_a_description_has_what_the_kind_declares_and_the_options_leave_of_it() -> None:
    assert describe("fake", "x").carries == ENGINES["fake"].carries == CARRIES_ALL
    assert describe("llamacpp", "smollm2-135m").carries == ENGINES["llamacpp"].carries == CARRIES_ALL
    assert b"declared" not in encode(describe("fake", "x"))  # as before there was such a field
    limited = describe("fake", "x", options={"carries": "none"}).carries
    assert (
        decode(encode(describe("fake", "x", options={"carries": "none"})), type=ModelInfo).carries == limited
    )
    assert limited == Carries(seed=False, penalties=False, grammar=False)
    assert both(Carries(seed=False), Carries(kv=False)) == Carries(seed=False, kv=False)


@pytest.mark.parametrize(
    ("sampling", "made"),
    [
        (Sampling(1, 9, temperature=0), ()),
        (Sampling(1, 9), (Promise.SEED,)),
        (Sampling(1, 9, temperature=0, presence_penalty=0.1), (Promise.PENALTIES,)),
        (Sampling(1, 9, temperature=0, frequency_penalty=-0.1), (Promise.PENALTIES,)),
        (Sampling(1, 9, temperature=0, repetition_penalty=1.3), ()),
        (Sampling(1, 9, temperature=0, logit_bias=((3, 1.0),), num_logprobs=2, min_tokens=3), ()),
        (Sampling(1, 9, grammar="root ::= [a-z]"), (Promise.SEED, Promise.GRAMMAR)),
        (Sampling(1, 9, temperature=0, json_schema="{}"), (Promise.GRAMMAR,)),
    ],
)
def test_what_a_request_promises_follows_from_its_sampling(
    sampling: Sampling, made: tuple[Promise, ...]
) -> None:
    assert promises(sampling) == made
    assert promises(sampling, has_seed=False) == tuple(one for one in made if one != Promise.SEED)
    assert broken_promises(made, CARRIES_ALL, CARRIES_ALL) == ()
    assert broken_promises(made, CARRIES_ALL, NOTHING) == made


def test_a_seed_must_be_carried_at_both_ends() -> None:
    made = (Promise.SEED, Promise.PENALTIES, Promise.GRAMMAR)
    assert broken_promises(made, NOTHING, CARRIES_ALL) == (Promise.SEED,)


@pytest.mark.parametrize("sampling", [SEEDED, PENALIZED], ids=["seed", "penalties"])
def test_a_fake_that_carries_nothing_goes_another_way_after_a_continuation(sampling: Sampling) -> None:
    """And is as deterministic as any fake: what counts is where it was taken up."""
    for options, is_kept in ((FakeOptions(), True), (FakeOptions(carries="none"), False)):
        whole = continuation([1, 2, 3], sampling, options=options)
        rest = continuation([1, 2, 3, *whole[:5]], sampling, num_prompt=3, length=7, options=options)
        assert (rest == whole[5:]) == is_kept
        assert whole == continuation([1, 2, 3], sampling, options=options)
    greedy = Sampling(seed=1, max_tokens=100, temperature=0.0)
    limited = FakeOptions(carries="none")
    whole = continuation([1, 2, 3], greedy, options=limited)
    rest = continuation([1, 2, 3, *whole[:5]], greedy, num_prompt=3, length=7, options=limited)
    assert rest == whole[5:]
