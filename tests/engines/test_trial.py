"""Grammars that would end a worker, or keep it busy for ever, end their trial instead."""

import pytest

from godwit.errors import BadRequestError
from godwit.types import Sampling
from tests.engines.rig import Rig

HOSTILE = {
    "nullable left recursion": 'root ::= e root "a" | "b"\ne ::= "x"?',
    "a repetition that ends before it begins": 'root ::= "a"{5,2}',
    "nested optional repetitions": 'root ::= (("a"?){40}){40}',
    "ambiguous recursion": "root ::= s s s s s s\ns ::= ([a-z ] s?) | ([a-z ] s? s?)",
}
HOSTILE_SCHEMAS = {
    "a pattern that repeats without bound": '{"type":"string","pattern":"^a{99999999999}$"}',
    "a length beyond all memory": '{"type":"string","minLength":1000000000}',
}


def wanted(*, grammar: str | None = None, json_schema: str | None = None) -> Sampling:
    return Sampling(seed=1, max_tokens=5, grammar=grammar, json_schema=json_schema)


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_grammar_is_refused(llama_rig: Rig, grammar: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        llama_rig.engine.try_out(wanted(grammar=grammar))
    assert caught.value.param == "grammar"


@pytest.mark.parametrize("schema", HOSTILE_SCHEMAS.values(), ids=HOSTILE_SCHEMAS.keys())
def test_a_hostile_schema_is_refused(llama_rig: Rig, schema: str) -> None:
    with pytest.raises(BadRequestError):
        llama_rig.engine.try_out(wanted(json_schema=schema))


def test_an_ordinary_grammar_and_schema_pass(llama_rig: Rig) -> None:
    llama_rig.engine.try_out(wanted(grammar='root ::= "yes" | "no"'))
    llama_rig.engine.try_out(wanted(json_schema='{"type":"object","properties":{"a":{"type":"integer"}}}'))
    llama_rig.engine.try_out(wanted())
