"""The engine contract on real vLLM servers, and leases on their KV."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from godwit.engines import create_engine
from godwit.engines.checkpoints import locate
from godwit.engines.gguf import open_vocabulary
from godwit.engines.leases import VALID_S, Lease
from godwit.engines.nixl import NixlKv
from godwit.engines.served import ServedEngine
from godwit.engines.server import Seat
from godwit.engines.vllm import VllmServer
from godwit.errors import BadRequestError, EngineError
from godwit.ports import Computed, Generated, SequenceSpec
from godwit.types import ChatMessage, RequestId, Sampling, TokenId
from tests.engines.rig import Rig
from tests.vllm.conftest import MODEL, attached

LENGTH = 24
GREEDY = Sampling(seed=1, max_tokens=LENGTH, temperature=0.0, ignore_eos=True)
Rigs = list[Rig]
SEAT = Seat(0, RequestId("a stay"))


def prompt(rig: Rig, text: str, times: int = 1) -> tuple[TokenId, ...]:
    rendered = rig.engine.render([ChatMessage("user", f"{text} " * times)])
    return tuple(rig.engine.tokenize(rendered, add_special=True))


def test_the_vocabulary_is_that_of_the_gguf(rigs: Rigs) -> None:
    with open_vocabulary(locate(MODEL, None)) as file:
        for token in range(file.num_vocab):
            assert rigs[0].engine.piece(token) == file.piece(token), token
        for text in ("Hello, world 1234!", "tab\tand 😀 é 漢", "<|im_start|>user\nhi<|im_end|>"):
            assert rigs[0].engine.tokenize(text, add_special=True) == file.tokenize(text, add_special=True)


def test_a_prefix_continues_on_the_other_server_as_if_it_had_not_moved(rigs: Rigs) -> None:
    first, second = rigs
    ids = prompt(first, "Describe a day in the life of a baker.")
    whole = first.run(ids, GREEDY)
    for cut in (1, 9, LENGTH - 1):
        assert second.run(ids, GREEDY, whole[:cut]) == whole[cut:]


def test_a_hold_told_in_advance_stops_exactly_there_and_goes_on_exactly(rigs: Rigs) -> None:
    rig = rigs[0]
    ids = prompt(rig, "List ten animals.")
    whole = rig.run(ids, GREEDY)
    request = rig.open(SequenceSpec(ids, (), GREEDY))
    rig.engine.generate(request)
    rig.engine.hold(request, 6)
    assert rig.held(request) == 6
    assert rig.outputs(request) == whole[:6]
    rig.engine.generate(request)
    assert rig.finish(request) == (whole, "length")


def test_rounds_leave_only_a_tail_to_be_computed(rigs: Rigs) -> None:
    rig = rigs[0]
    ids = prompt(rig, "Explain how a bicycle works.", 20)
    whole = rig.run(ids, GREEDY)
    request = rig.open(SequenceSpec(ids, (), GREEDY))
    rig.wait_for(request, Computed)
    rig.engine.append(request, whole[:7])
    rig.wait_for(request, Computed, occurrences=2)
    assert [c.num_tokens - len(ids) for c in rig.computed(request)] == [0, 7]
    rig.engine.generate(request)
    assert rig.finish(request) == (whole[7:], "length")


def test_logprobs_and_the_end_of_sequence(rigs: Rigs) -> None:
    rig = rigs[0]
    ids = prompt(rig, "Say hello in one word.")
    sampling = Sampling(seed=1, max_tokens=60, temperature=0.0, num_logprobs=2)
    request = rig.open(SequenceSpec(ids, (), sampling))
    rig.engine.generate(request)
    outputs, reason = rig.finish(request)
    assert reason == "stop"
    drawn = [e.token for e in rig.events(request) if isinstance(e, Generated)]
    assert [token.id for token in drawn] == outputs
    for token in drawn:
        chosen, *best = token.alternatives
        assert (chosen.id, len(best)) == (token.id, 2)
        assert best[0].logprob >= best[1].logprob
        assert chosen.text == token.text == rig.engine.piece(token.id)


def test_answers_end_at_the_same_ids_as_in_the_embedded_engine(servers: list[VllmServer]) -> None:
    """Ids that the model hardly ever draws: a bias has it draw them as soon as they are allowed."""
    with open_vocabulary(locate(MODEL, None)) as file:
        ends = file.eog_ids
    assert len(ends) > 1
    client = attached(servers[0], origin="smollm2-135m")
    served = Rig(ServedEngine(client, client.kv))
    embedded = Rig(create_engine("llamacpp", name=MODEL, slots=1, context_tokens=256))
    ids = prompt(served, "Hello.")
    for end in ends:
        sampling = Sampling(seed=1, max_tokens=5, temperature=0.0, logit_bias=((end, 100.0),))
        for changes in ({}, {"min_tokens": 2}, {"ignore_eos": True}):
            told = []
            for rig in (served, embedded):
                request = rig.open(SequenceSpec(ids, (), msgspec.structs.replace(sampling, **changes)))
                rig.engine.generate(request)
                outputs, reason = rig.finish(request)
                told.append((len(outputs), reason, end in outputs))
            assert told[0] == told[1], (end, changes)
    served.engine.close()
    embedded.engine.close()


def test_what_the_server_refuses_fails_that_request_alone(rigs: Rigs) -> None:
    rig = rigs[0]
    ids = prompt(rig, "Hello.")
    bad = rig.open(SequenceSpec(ids, (), Sampling(seed=1, max_tokens=4, json_schema='{"type": "no such"}')))
    rig.engine.generate(bad)
    assert "refused" in rig.failure(bad)
    rig.engine.release(bad)
    assert len(rig.run(ids, GREEDY)) == LENGTH


def test_a_grammar_that_has_begun_is_not_continued(rigs: Rigs) -> None:
    ids = prompt(rigs[0], "Hello.")
    with pytest.raises(BadRequestError, match="cannot continue"):
        rigs[0].engine.check(SequenceSpec(ids, (5,), Sampling(seed=1, max_tokens=9, json_schema="{}")))


# --- leases ---


async def refused(kv: NixlKv, ids: Sequence[TokenId], lease: Lease, why: str) -> None:
    with pytest.raises(EngineError, match=why):
        await kv.import_kv(SEAT, ids, bytearray(msgspec.json.encode(lease)))


def test_a_lease_is_taken_once_for_its_tokens_while_it_is_fresh(
    rigs: Rigs, servers: list[VllmServer]
) -> None:
    first, second = rigs
    ids = prompt(first, "Tell me about the sea and its tides.", 12)
    others = prompt(first, "Tell me about the sun and its spots.", 12)[: len(ids)]
    expected, other = first.run(ids, GREEDY), first.run(others, GREEDY)

    async def take_leases() -> None:
        source, destination = attached(servers[0]), attached(servers[1])
        assert source.kv is not None
        assert destination.kv is not None
        lease = msgspec.json.decode(await source.kv.export_kv(SEAT, ids), type=Lease)
        later = msgspec.json.decode(await source.kv.export_kv(SEAT, ids), type=Lease)
        await refused(destination.kv, others, lease, "other tokens")
        await destination.kv.import_kv(SEAT, ids, bytearray(msgspec.json.encode(lease)))
        await refused(destination.kv, ids, lease, "has been used")
        aged = msgspec.structs.replace(later, issued_s=later.issued_s - 2 * VALID_S)
        await refused(destination.kv, ids, aged, "s old")
        await refused(destination.kv, ids, msgspec.structs.replace(later, engine="of before"), "another life")
        await source.close()
        await destination.close()

    asyncio.run(take_leases())
    # Nothing of that has spoilt what the destination answers.
    assert second.run(ids, GREEDY) == expected
    assert second.run(others, GREEDY) == other
