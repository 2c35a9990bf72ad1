"""Exact continuation on a real model (F16): a moved answer has the unmoved one's tokens, greedy and seeded."""

import json
from typing import Any

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.streams import Answer, Choice

pytestmark = pytest.mark.anyio

QUESTION = "Describe the bird called godwit: its colour, its flight and its food."
CHAT = {"model": "smollm2-135m", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 70}
GREEDY = {**CHAT, "temperature": 0, "ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "colours": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 3, "maxItems": 4},
        "weight_g": {"type": "integer"},
        "diet": {"enum": ["worms", "fish", "seeds"]},
    },
    "required": ["name", "colours", "weight_g", "diet"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= line line line line\nline ::= "- " [a-z ]{16,20} "\\n"'

ROWS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seed": {**CHAT, "temperature": 0.9, "top_p": 0.95, "top_k": 60, "seed": 4, "ignore_eos": True},
    "penalties": {**GREEDY, "frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.1},
    "grammar": {**CHAT, "temperature": 0.7, "seed": 5, "grammar": GRAMMAR, "max_tokens": 200},
    "json_schema": {
        **CHAT,
        "temperature": 0.7,
        "seed": 6,
        "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "bird", "schema": SCHEMA}},
    },
    "logprobs": {**GREEDY, "logprobs": True, "top_logprobs": 3},
    "n": {**CHAT, "temperature": 1, "seed": 7, "n": 2, "ignore_eos": True},
    "text completion": {
        "model": "smollm2-135m",
        "prompt": "The godwit is a bird that",
        "max_tokens": 70,
        "temperature": 0,
        "ignore_eos": True,
    },
}
CUTS = (8, 30)
# Sums over many terms, in another order for one token than for a batch of them.
LOGPROB_TOLERANCE = 0.05


async def moved(cluster: Cluster, body: dict[str, Any], *, live: bool) -> Answer:
    """The answer to a request that went to the other worker and back."""
    stream = cluster.open(body)
    status = await cluster.wait_for(lambda status: len(status.requests) == body.get("n", 1))
    for cut in CUTS:
        for request in [one.id for one in status.requests]:
            await move_at(cluster, request, cut, live=live)
    return await stream.end()


async def move_at(cluster: Cluster, request: str, cut: int, *, live: bool) -> None:
    """Move a request to the other worker once it has so many tokens."""
    status = await cluster.wait_for(
        lambda status: all(one.num_output >= cut for one in status.requests if one.id == request)
    )
    (source,) = [one.worker for one in status.requests if one.id == request]
    record = await cluster.move(request, "w2" if source == "w1" else "w1", live=live)
    assert record.outcome == "done", record


def check_equal(one: Answer, other: Answer) -> None:
    """The same to the client, but for the last digits of log probabilities."""
    assert one.error is None
    for index, choice in one.choices.items():
        same = other.choices[index]
        assert (choice.ids, choice.text) == (same.ids, same.text)
        assert choice.finish_reason == same.finish_reason
        check_logprobs(choice, same)
    assert one.usage == other.usage
    assert one.is_done
    assert other.is_done


def check_logprobs(one: Choice, other: Choice) -> None:
    assert len(one.logprobs) == len(other.logprobs)
    for entry, same in zip(one.logprobs, other.logprobs, strict=True):
        assert (entry["token"], entry["bytes"]) == (same["token"], same["bytes"])
        assert entry["logprob"] == pytest.approx(same["logprob"], abs=LOGPROB_TOLERANCE)
        pairs = zip(entry["top_logprobs"], same["top_logprobs"], strict=True)
        for best, same_best in pairs:
            assert best["logprob"] == pytest.approx(same_best["logprob"], abs=LOGPROB_TOLERANCE)


@pytest.mark.parametrize("row", ROWS)
async def test_moved(real_cluster: Cluster, row: str) -> None:
    """Twice by a live move."""
    await real_cluster.is_idle()
    unmoved = await real_cluster.answer(ROWS[row])
    assert all(len(choice.ids) > 2 * CUTS[-1] - 5 for choice in unmoved.choices.values())
    check_equal(await moved(real_cluster, ROWS[row], live=True), unmoved)
    if row == "json_schema":
        bird = json.loads(unmoved.only.text)
        assert set(bird) == set(SCHEMA["properties"])
        assert unmoved.only.finish_reason == "stop"
    if row == "grammar":
        assert len(unmoved.only.text.splitlines()) == 4
    if row == "logprobs":
        assert len(unmoved.only.logprobs) == CHAT["max_tokens"]


async def test_stop_and_recompute(real_cluster: Cluster) -> None:
    """The grammar's matcher is advanced over an output that the destination gets all at once."""
    unmoved = await real_cluster.answer(ROWS["json_schema"])
    check_equal(await moved(real_cluster, ROWS["json_schema"], live=False), unmoved)


async def test_stop_string(real_cluster: Cluster) -> None:
    """The request moves while the start of its stop string is withheld."""
    whole = await real_cluster.answer(GREEDY)
    body = {**GREEDY, "stop": whole.only.text[20:250]}
    unmoved = await real_cluster.answer(body)
    assert unmoved.only.text == whole.only.text[:20]
    assert unmoved.only.finish_reason == "stop"
    check_equal(await moved(real_cluster, body, live=True), unmoved)


async def test_failed_over(real_cluster: Cluster) -> None:
    """Its worker is killed in the middle of the JSON, and of a seeded answer."""
    rows = ("json_schema", "seed")
    unmoved = [await real_cluster.answer(ROWS[row]) for row in rows]
    for row, expected in zip(rows, unmoved, strict=True):
        stream = await real_cluster.started(ROWS[row], 25)
        source = (await real_cluster.find(stream.request)).worker or ""
        await real_cluster.kill(source)
        check_equal(await stream.end(), expected)
        assert ("failover", "done") in await real_cluster.outcomes(stream.request)
        await real_cluster.restart(source)
    await real_cluster.has_all_slots("smollm2-135m")
