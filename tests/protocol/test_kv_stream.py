"""Blocks of KV from one end to the other, with nothing between them."""

import tracemalloc
from collections import deque

import pytest

from godwit.protocol import kv
from godwit.protocol.kv import BlockDigests, KvReceiving, KvSending
from godwit.protocol.messages import KvPart
from godwit.protocol.wire import decode_from_peer, encode
from godwit.types import KvOffer, KvRange, MoveId

NUM_TOKENS, BYTES_PER_TOKEN = 2048, 23_040
IDS = tuple(range(NUM_TOKENS + 1))
PYTHON_BYTES = 20_000
"""What the messages take beside their data."""
Blocks = list[tuple[KvRange, bytearray]]


def offer(share: float = 0.0, last: int = NUM_TOKENS, layout: str = "layout") -> KvOffer:
    return KvOffer(KvRange(0, last), layout, share, 64)


def receiving(
    what: KvOffer, checkpoint: str = "weights", ids: tuple[int, ...] = IDS, *, offered: KvOffer | None = None
) -> KvReceiving:
    return KvReceiving(offered or what, BlockDigests(checkpoint, what, ids), 0.0)


def sending(what: KvOffer, *, ships_tail: bool = False) -> KvSending:
    made = KvSending(MoveId("m"), what, ships_tail, BlockDigests("weights", what, IDS), 100.0)
    made.is_asked = True
    return made


def carry(source: KvSending, destination: KvReceiving, blocks: Blocks, known: int = NUM_TOKENS) -> str | None:
    """Everything over the wire, in order, each window's frames together; what was wrong, if anything."""
    frames: deque[bytes] = deque()
    while True:
        frames.extend(encode(part) for part in source.parts())
        for wanted in source.ranges(known):
            size = (wanted.last - wanted.first) * BYTES_PER_TOKEN
            source.exported(wanted, bytearray(wanted.first.to_bytes(2) * (size // 2)), IDS)
        if source.is_all_sent and not frames:
            return None
        while frames:
            part = decode_from_peer(frames.popleft())
            assert isinstance(part, KvPart)
            taken = destination.take(part, len(IDS), lambda: IDS, 0.0)
            if isinstance(taken, str):
                return taken
            if taken is not None:
                blocks.append(taken)
            del part, taken
        source.num_acked = destination.num_received


@pytest.fixture(autouse=True)
def real_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "CHUNK_BYTES", 512 * 1024)
    monkeypatch.setattr(kv, "WINDOW_BYTES", 1024 * 1024)
    monkeypatch.setattr(kv, "MIN_TAIL_TOKENS", 8)


@pytest.mark.parametrize("share", [0.0, 0.4], ids=["in order", "backwards"])
def test_all_blocks_arrive_whole_and_follow_one_another(share: float) -> None:
    blocks: Blocks = []
    what = offer(share, NUM_TOKENS - 10)
    assert carry(sending(what), receiving(what), blocks) is None
    ranges = [one for one, _ in blocks]
    ordered = sorted(ranges, key=lambda one: one.first)
    assert ranges == (ordered[::-1] if share else ordered)
    assert [one.first for one in ordered] == list(range(0, NUM_TOKENS - 10, 64))
    assert [one.last for one in ordered] == [one.first for one in ordered[1:]] + [NUM_TOKENS - 10]
    assert all(len(data) == (one.last - one.first) * BYTES_PER_TOKEN for one, data in blocks)


def test_what_was_drawn_meanwhile_follows_in_rounds_that_shrink() -> None:
    blocks: Blocks = []
    what = offer(0.0, 1000)
    source = sending(what, ships_tail=True)
    assert carry(source, receiving(what), blocks, 1400) is None
    assert blocks[-1][0].last == 1400
    assert carry(source, receiving(offer(0.0, 1000)), blocks, 1620) is None
    assert blocks[-1][0].last == 1400, "a round of more than half the one before does not close the gap"


@pytest.mark.parametrize("drawn", [7, 501])
def test_few_new_tokens_are_computed_and_so_are_too_many(drawn: int) -> None:
    blocks: Blocks = []
    what = offer(0.0, 1000)
    assert carry(sending(what, ships_tail=True), receiving(what), blocks, 1000 + drawn) is None
    assert blocks[-1][0].last == 1000


@pytest.mark.parametrize("share", [0.0, 0.4], ids=["in order", "backwards"])
def test_two_thousand_tokens_take_no_more_than_the_kv_and_two_chunks_at_both_ends_together(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(kv, "AHEAD_BYTES", 1024 * 1024)
    blocks: Blocks = []
    what = offer(share)
    source, destination = sending(what), receiving(what)
    tracemalloc.start()
    try:
        assert carry(source, destination, blocks) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    block_bytes = 64 * BYTES_PER_TOKEN
    kept = NUM_TOKENS * BYTES_PER_TOKEN  # by this test
    assert peak_bytes <= kept + 2 * kv.CHUNK_BYTES + 2 * block_bytes + PYTHON_BYTES


@pytest.mark.parametrize(
    "other",
    [
        receiving(offer(), "other weights"),
        receiving(offer(layout="another layout"), offered=offer()),
        receiving(offer(), ids=(*IDS[:-2], 7, 8)),
    ],
)
def test_kv_of_anything_else_has_another_digest(other: KvReceiving) -> None:
    assert carry(sending(offer()), other, []) == "its digest is wrong"


def test_tokens_after_the_offer_do_not_matter() -> None:
    assert carry(sending(offer()), receiving(offer(), ids=(*IDS[:-1], 99, 100)), []) is None


@pytest.mark.parametrize("share", [0.0, 0.4], ids=["in order", "backwards"])
def test_blocks_of_unknown_size_are_not_exported_beyond_what_may_wait(share: float) -> None:
    source = sending(offer(share))
    (first,) = source.ranges(NUM_TOKENS)
    source.exported(first, bytearray(kv.AHEAD_BYTES // 2), IDS)
    assert len(list(source.ranges(NUM_TOKENS))) == 1
