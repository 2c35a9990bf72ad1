"""Chunks of KV from one end to the other, with nothing between them."""

import tracemalloc
from collections import deque

import pytest

from godwit.protocol import kv
from godwit.protocol.kv import KvReceiving, KvSending, start_digest
from godwit.protocol.messages import KvPart
from godwit.protocol.wire import decode_from_peer, encode
from godwit.types import KvOffer, KvRange, MoveId

NUM_TOKENS, BYTES_PER_TOKEN = 2048, 23_040
OFFER = KvOffer(KvRange(0, NUM_TOKENS), "layout")
IDS = tuple(range(NUM_TOKENS + 1))
PYTHON_BYTES = 20_000
"""What the messages take beside their data."""


def ends(checkpoint: str = "weights", offer: KvOffer = OFFER, ids: tuple[int, ...] = IDS) -> KvReceiving:
    return KvReceiving(offer, start_digest(checkpoint, offer, ids), 0.0)


def sending(data: bytearray) -> KvSending:
    return KvSending(MoveId("m"), OFFER, start_digest("weights", OFFER, IDS), 0.0, 100.0, data)


def carry(source: KvSending, destination: KvReceiving) -> str | None:
    """Everything over the wire, in order, each window's frames together; what was wrong, if anything."""
    frames: deque[bytes] = deque()
    while not destination.is_whole:
        frames.extend(encode(part) for part in source.parts())
        while frames:
            part = decode_from_peer(frames.popleft())
            assert isinstance(part, KvPart)
            if (problem := destination.take(part, 0.0)) is not None:
                return problem
            del part
        source.num_wanted = destination.num_received
    return None


def test_two_thousand_tokens_take_no_more_than_two_chunks_beside_the_kv(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv, "CHUNK_BYTES", 512 * 1024)
    monkeypatch.setattr(kv, "WINDOW_BYTES", 1024 * 1024)
    data = bytearray(NUM_TOKENS * BYTES_PER_TOKEN)
    data[::997] = b"x" * len(data[::997])
    source, destination = sending(data), ends()
    tracemalloc.start()
    try:
        assert carry(source, destination) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert destination.is_whole and destination.data == data
    assert peak_bytes <= len(data) + 2 * kv.CHUNK_BYTES + PYTHON_BYTES, (
        "the destination's copy and two chunks"
    )


@pytest.mark.parametrize(
    "other",
    [
        ends("other weights"),
        ends(offer=KvOffer(OFFER.kv, "another layout")),
        ends(offer=KvOffer(KvRange(1, NUM_TOKENS), "layout")),
        ends(ids=(*IDS[:-2], 7, 8)),
    ],
)
def test_kv_of_anything_else_has_another_digest(other: KvReceiving) -> None:
    assert carry(sending(bytearray(b"kv" * 500)), other) == "its digest is wrong"


def test_tokens_after_the_range_do_not_matter() -> None:
    assert carry(sending(bytearray(b"kv" * 500)), ends(ids=(*IDS[:-1], 99, 100))) is None
