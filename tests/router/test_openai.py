"""Bodies become plans, or a 400 that names the parameter."""

import json
from typing import Any

import pytest

from godwit.errors import BadRequestError
from godwit.router.openai import Plan, plan_chat, plan_completion
from godwit.types import Sampling
from tests.router.scripted import text_of

HELLO = [{"role": "user", "content": "Hello"}]
RANDOM_SEED = 99


def chat(**fields: Any) -> Plan:
    body = {"model": "m", "messages": HELLO, **fields}
    return plan_chat(json.dumps(body).encode(), "base", lambda: RANDOM_SEED, 32)


def completion(**fields: Any) -> Plan:
    body = {"model": "m", "prompt": "Hello", **fields}
    return plan_completion(json.dumps(body).encode(), "base", lambda: RANDOM_SEED, 32)


def test_all_sampling_parameters_reach_the_engine() -> None:
    plan = chat(
        seed=5,
        max_tokens=100,
        min_tokens=3,
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        repetition_penalty=1.1,
        logit_bias={"7": -100, "3": 1.5},
        grammar='root ::= "x"',
        logprobs=True,
        top_logprobs=4,
        ignore_eos=True,
        stop=["a", "b"],
    )
    assert plan.choices[0].sampling == Sampling(
        seed=5,
        max_tokens=100,
        min_tokens=3,
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        repetition_penalty=1.1,
        logit_bias=((3, 1.5), (7, -100.0)),
        grammar='root ::= "x"',
        num_logprobs=4,
        ignore_eos=True,
    )
    assert plan.stops == ("a", "b")


def test_what_is_left_out_or_null_has_openais_default() -> None:
    nulls = dict.fromkeys(["stop", "n", "temperature", "max_tokens", "tools", "logit_bias", "stream_options"])
    plan = chat(**nulls)
    assert plan.choices[0].sampling == Sampling(seed=RANDOM_SEED, max_tokens=2**31 - 1)
    assert not plan.has_seed and chat(seed=0).has_seed
    assert plan.choices[0].request == "base"
    assert not plan.is_streamed
    assert completion().choices[0].sampling.max_tokens == 16


def test_fields_without_effect_are_tolerated() -> None:
    chat(user="u", metadata={"a": "b"}, store=False, service_tier="auto", prompt_cache_key="k")


def test_max_completion_tokens_is_the_newer_name_of_max_tokens() -> None:
    assert chat(max_completion_tokens=5).choices[0].sampling.max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).choices[0].sampling.max_tokens == 5


def test_a_guess_of_the_outputs_length_is_passed_on_and_changes_nothing_else() -> None:
    plan = chat(expected_tokens=250)
    assert plan.expected_tokens == 250
    assert plan.choices[0].sampling == chat().choices[0].sampling
    assert completion().expected_tokens is None
    with pytest.raises(BadRequestError, match="expected_tokens"):
        completion(expected_tokens=0)


def test_choices_have_ids_and_seeds_of_their_own_and_the_first_has_the_clients_seed() -> None:
    plan = chat(n=3, seed=7)
    assert [c.request for c in plan.choices] == ["base-0", "base-1", "base-2"]
    assert [c.sampling.seed for c in plan.choices] == [7, 8, 9]


def test_a_prompt_in_a_list_is_sampled_as_it_would_be_alone() -> None:
    plan = completion(prompt=["a", "b"], n=2, seed=7)
    assert [text_of(c.prompt) for c in plan.choices] == ["a", "a", "b", "b"]
    assert [c.sampling.seed for c in plan.choices] == [7, 8, 7, 8]


def test_seeds_stay_in_64_bits() -> None:
    assert [c.sampling.seed for c in chat(n=2, seed=2**63 - 1).choices] == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [(1, 2)]), ([[1, 2], [3]], [(1, 2), (3,)])],
)
def test_prompts_may_be_text_or_ids_one_or_many(prompt: object, expected: list[object]) -> None:
    assert [text_of(c.prompt) for c in completion(prompt=prompt).choices] == expected


def test_text_parts_are_joined_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    plan = chat(messages=[{"role": "developer", "content": "rules"}, {"role": "user", "content": parts}])
    assert text_of(plan.choices[0].prompt) == [("system", "rules"), ("user", "a\nb")]


def test_an_answer_can_be_sent_back_as_the_client_library_dumps_it() -> None:
    answer = {"role": "assistant", "content": "Hi", "refusal": None, "tool_calls": None, "audio": None}
    assert text_of(chat(messages=[*HELLO, answer]).choices[0].prompt)


def test_response_formats_become_json_schemas_with_their_text_unchanged() -> None:
    assert chat(response_format={"type": "text"}).choices[0].sampling.json_schema is None
    assert chat(response_format={"type": "json_object"}).choices[0].sampling.json_schema == "{}"
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    assert chat(response_format=wanted).choices[0].sampling.json_schema == json.dumps(schema)


IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]

BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"foo": 1}, "foo"),
    ({"tools": [{}]}, "tools"),
    ({"functions": []}, "functions"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"audio": {}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"store": True}, "store"),
    ({"messages": []}, "messages"),
    ({"messages": IMAGE}, "messages[0].content[0].type"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[0].weight"),
    ({"n": 17}, "n"),
    ({"n": 0}, "n"),
    ({"stop": list("abcde")}, "stop"),
    ({"stop": ""}, "stop"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"min_tokens": 5, "max_tokens": 3}, "min_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": 3}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "grammar"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"prompt": "x"}, "prompt"),
    ({"model": None}, "model"),
]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": ["a"] * 33}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 3}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True, "logprobs": 1}, "logprobs"),
    ({"echo": True, "prompt": [1, 2]}, "echo"),
    ({"messages": HELLO}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHATS)
def test_a_bad_chat_body_gets_a_400_that_names_the_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param.split(".")[-1].split("[")[0] in caught.value.message


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETIONS)
def test_a_bad_completion_body_gets_a_400_that_names_the_parameter(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        completion(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"model":"\xff"}',
        b'{"model":"\\ud800"}',
        b'{"model":"m","messages":[],"response_format":{"type":"json_schema","json_schema":{"schema":'
        + b"[" * 100_000,
    ],
)
def test_a_body_that_is_not_a_request_gets_a_400(raw: bytes) -> None:
    with pytest.raises(BadRequestError):
        plan_chat(raw, "base", lambda: 1, 32)


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(BadRequestError) as caught:
        plan_chat(b'{"messages": []}', "base", lambda: 1, 32)
    assert caught.value.param in ("model", "messages")
