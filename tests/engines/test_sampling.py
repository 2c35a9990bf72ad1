"""The sampler over made-up logits: it needs a vocabulary, not a model."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("llama_cpp")

from godwit.engines.checkpoints import locate
from godwit.engines.gguf import GgufFile, open_vocabulary
from godwit.engines.sampling import Candidates, Logits, Sampler, draw_seed
from godwit.errors import BadRequestError, EngineError
from godwit.ports import SequenceSpec
from godwit.types import Sampling, TokenId

PROMPT = (10, 20, 30, 20)
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def file() -> Iterator[GgufFile]:
    with open_vocabulary(locate("smollm2-135m", None)) as opened:
        yield opened


@pytest.fixture(scope="module")
def candidates(file: GgufFile) -> Candidates:
    return Candidates(file.num_vocab)


class Drawer:
    """Draws with made-up logits that depend on the output index alone."""

    def __init__(self, file: GgufFile, candidates: Candidates) -> None:
        self.file = file
        self._candidates = candidates

    def logits(self, index: int) -> Logits:
        return np.random.default_rng(index).normal(0, 3, self.file.num_vocab).astype(np.float32)

    def sampler(self, sampling: Sampling, outputs: tuple[TokenId, ...] = ()) -> Sampler:
        return Sampler(SequenceSpec(PROMPT, outputs, sampling), self.file, self._candidates)

    def run(
        self, sampling: Sampling, outputs: tuple[TokenId, ...] = (), *, length: int = 10
    ) -> list[TokenId]:
        """Output ids after `outputs`, up to `length` in all or the end of the sequence."""
        sampler = self.sampler(sampling, outputs)
        drawn: list[TokenId] = []
        while len(outputs) + len(drawn) < length:
            token = sampler.draw(self.logits(len(outputs) + len(drawn)))
            if token is None:
                break
            drawn.append(token.id)
        sampler.close()
        return drawn

    def once(self, sampling: Sampling, logits: Logits, outputs: tuple[TokenId, ...] = ()) -> TokenId | None:
        sampler = self.sampler(sampling, outputs)
        token = sampler.draw(logits)
        sampler.close()
        return None if token is None else token.id

    def peaks(self, *ranked: TokenId, step: float = 1.0) -> Logits:
        """Flat logits, but for these tokens, best first."""
        logits = np.full(self.file.num_vocab, -20.0, dtype=np.float32)
        for rank, token in enumerate(ranked):
            logits[token] = 10.0 - step * rank
        return logits


@pytest.fixture(scope="module")
def drawer(file: GgufFile, candidates: Candidates) -> Drawer:
    return Drawer(file, candidates)


def text(drawer: Drawer, ids: list[TokenId]) -> str:
    return b"".join(drawer.file.piece(token) for token in ids).decode()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=3, max_tokens=10, ignore_eos=True),
        Sampling(seed=3, max_tokens=10, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05),
        Sampling(seed=3, max_tokens=10, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.3),
        Sampling(seed=3, max_tokens=10, temperature=0.0, frequency_penalty=2.0, logit_bias=((50, 14.0),)),
        Sampling(seed=3, max_tokens=10, grammar='root ::= ("ab" | "cd" | [x-z])+', ignore_eos=True),
        Sampling(seed=3, max_tokens=10, json_schema=PERSON),
        Sampling(seed=3, max_tokens=10, json_schema="{}"),
        Sampling(seed=3, max_tokens=10, min_tokens=5),
    ],
    ids=["plain", "filters", "penalties", "bias", "gbnf", "schema", "object", "min"],
)
def test_a_rebuilt_sampler_draws_on_as_if_nothing_had_happened(drawer: Drawer, sampling: Sampling) -> None:
    whole = drawer.run(sampling)
    assert len(whole) == 10
    for cut in range(1, 10):
        assert drawer.run(sampling, tuple(whole[:cut])) == whole[cut:]


def test_the_draw_depends_on_seed_and_index_alone() -> None:
    seeds = {draw_seed(seed, index, stream) for seed in range(20) for index in range(20) for stream in (0, 1)}
    assert len(seeds) == 800
    assert draw_seed(-1, 5, 0) == draw_seed(2**64 - 1, 5, 0)
    assert all(0 <= s < 0xFFFFFFFF for s in seeds)


def test_frequencies_follow_the_probabilities(drawer: Drawer) -> None:
    logits = drawer.peaks(7, 9, step=1.0)
    drawn = [drawer.once(Sampling(seed=seed, max_tokens=1), logits) for seed in range(400)]
    assert abs(drawn.count(7) / 400 - 0.731) < 0.06
    assert drawn.count(7) + drawn.count(9) == 400


def test_filters_cut_off_the_tail(drawer: Drawer) -> None:
    logits = drawer.peaks(7, 9, 11, 13, step=0.5)
    base = Sampling(seed=0, max_tokens=1)
    for sampling, allowed in [
        (replace(base, top_k=2), {7, 9}),
        (replace(base, top_p=0.5), {7, 9}),
        (replace(base, top_p=0.0), {7}),
        (replace(base, min_p=0.5), {7, 9}),
        (replace(base, temperature=1e-6), {7}),
        (replace(base, temperature=0.05), {7}),
    ]:
        draws = {drawer.once(replace(sampling, seed=seed), logits) for seed in range(40)}
        assert draws == allowed


def test_greedy_takes_the_lowest_id_of_equals(drawer: Drawer) -> None:
    assert drawer.once(Sampling(seed=1, max_tokens=1, temperature=0.0), drawer.peaks(9, 7, step=0.0)) == 7


def test_presence_and_frequency_count_output_only_and_repetition_counts_the_prompt(drawer: Drawer) -> None:
    logits = drawer.peaks(20, 9)
    greedy = Sampling(seed=1, max_tokens=9, temperature=0.0)
    for sampling in (replace(greedy, presence_penalty=2.0), replace(greedy, frequency_penalty=2.0)):
        assert drawer.once(sampling, logits) == 20
        assert drawer.once(sampling, logits, (20,)) == 9
    repeat = replace(greedy, repetition_penalty=1.5)
    assert drawer.once(repeat, logits) == 9
    assert drawer.once(repeat, drawer.peaks(21, 9)) == 21
    assert drawer.once(repeat, drawer.peaks(21, 9), (21,)) == 9


def test_logit_bias_moves_and_bans(drawer: Drawer) -> None:
    logits = drawer.peaks(7, 9)
    assert drawer.once(Sampling(seed=1, max_tokens=1, temperature=0.0, logit_bias=((9, 5.0),)), logits) == 9
    for seed in range(20):
        assert drawer.once(Sampling(seed=seed, max_tokens=1, logit_bias=((7, -100.0),)), logits) == 9


def test_the_end_is_masked_until_min_tokens_and_always_where_it_is_ignored(drawer: Drawer) -> None:
    end = drawer.file.eog_ids[0]
    logits = drawer.peaks(end, 9, step=5.0)
    assert drawer.once(Sampling(seed=1, max_tokens=9, temperature=0.0), logits) is None
    assert drawer.once(Sampling(seed=1, max_tokens=9, temperature=0.0, ignore_eos=True), logits) == 9
    least = Sampling(seed=1, max_tokens=9, temperature=0.0, min_tokens=2)
    assert drawer.once(least, logits, (5,)) == 9
    assert drawer.once(least, logits, (5, 5)) is None


def test_a_grammar_holds_and_ends_the_sequence_where_it_can_only_end(drawer: Drawer) -> None:
    base = Sampling(seed=1, max_tokens=99, grammar='root ::= "yes" | "no"')
    for sampling in (base, replace(base, min_tokens=9), replace(base, ignore_eos=True)):
        assert text(drawer, drawer.run(sampling, length=99)) in ("yes", "no")


def test_the_end_is_not_drawn_where_the_grammar_must_go_on(drawer: Drawer) -> None:
    end = drawer.file.eog_ids[0]
    sampling = Sampling(seed=1, max_tokens=9, temperature=0.0, grammar='root ::= "abc"')
    drawn = drawer.once(sampling, drawer.peaks(end))
    assert drawn is not None
    assert "abc".startswith(text(drawer, [drawn]))


def test_special_tokens_do_not_pass_as_their_text(drawer: Drawer) -> None:
    hidden = drawer.file.hidden_ids[0]
    sampling = Sampling(seed=1, max_tokens=9, temperature=0.0, grammar="root ::= [^q]+")
    assert drawer.once(sampling, drawer.peaks(hidden, 4933, step=5.0)) == 4933


def test_answers_to_a_schema_parse_and_fit_it(drawer: Drawer) -> None:
    for seed in range(3):
        whole = text(drawer, drawer.run(Sampling(seed=seed, max_tokens=200, json_schema=PERSON), length=200))
        value = json.loads(whole)
        assert set(value) == {"name", "age", "tags"}
        assert len(value["name"]) <= 12
        assert isinstance(value["age"], int)
        assert set(value["tags"]) <= {"a", "b"}


@pytest.mark.parametrize(
    "schema",
    [
        "{}",
        " {} ",
        '{"type": "object"}',
        '{"type": "array", "items": {"type": "number"}, "minItems": 1}',
        '{"anyOf": [{"type": "null"}, {"type": "boolean"}]}',
        '{"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}',
        '{"type": "string", "pattern": "^[a-z]{2,4}$"}',
        '{"type": "string", "format": "date"}',
        '{"const": {"a": [1, "x"]}}',
        '{"type": "object", "additionalProperties": {"type": "integer"}}',
        '{"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "string"}}}]}',
    ],
)
def test_schemas_compile(drawer: Drawer, schema: str) -> None:
    drawer.sampler(Sampling(seed=1, max_tokens=9, json_schema=schema)).close()


def test_an_empty_schema_means_an_object(drawer: Drawer) -> None:
    first = drawer.run(Sampling(seed=1, max_tokens=9, json_schema="{}"), length=1)
    assert text(drawer, first).startswith("{")


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "root ::= foo"},
        {"grammar": "start ::= [a-z]"},
        {"grammar": "root ::= root [a]"},
        {"grammar": "root ::= ("},
        {"grammar": ""},
        {"grammar": 'root ::= "a\0b"'},
        {"grammar": "root ::= " + "(" * 5000 + "[a]" + ")" * 5000},
        {"grammar": "root ::= [a]{100000000}"},
        {"json_schema": "not json"},
        {"json_schema": "[]"},
        {"json_schema": '{"type": "nonsense"}'},
        {"json_schema": '{"$ref": "https://example.com/x.json"}'},
        {"json_schema": '{"$ref": "#/nowhere"}'},
        {"json_schema": '{"a":' * 3000 + "1" + "}" * 3000},
        {"grammar": "root ::= [a]", "json_schema": "{}"},
    ],
)
def test_what_cannot_be_followed_is_a_bad_request(drawer: Drawer, fields: dict[str, str]) -> None:
    with pytest.raises(BadRequestError) as caught:
        drawer.sampler(Sampling(seed=1, max_tokens=9, **fields))  # type: ignore[arg-type]  # fields by name
    assert caught.value.param in fields


def test_output_that_breaks_the_grammar_is_refused_loudly(drawer: Drawer) -> None:
    sampling = Sampling(seed=1, max_tokens=9, grammar='root ::= "abc"')
    with pytest.raises(EngineError, match="grammar"):
        drawer.sampler(sampling, (drawer.file.tokenize("zebra", add_special=False)[0],))
