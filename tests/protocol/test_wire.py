"""Frames: what goes in comes out, what is none is refused with a typed error."""

import math

import pytest

from godwit.errors import ProtocolError
from godwit.protocol.messages import (
    Commit,
    Hello,
    Keep,
    Resume,
    TokenEvent,
    Tokens,
)
from godwit.protocol.wire import decode_from_head, decode_from_peer, decode_from_worker, encode
from godwit.types import (
    Alternative,
    Epoch,
    KvOffer,
    KvRange,
    ModelName,
    MoveId,
    RequestId,
    Sampling,
    Token,
    WorkerId,
)

MOVE, REQUEST = MoveId("m1"), RequestId("r1")


def test_tokens_come_out_as_they_went_in() -> None:
    alternatives = ((Alternative(7, b"\xf0\x9f", -0.5), Alternative(8, b"x", -1.5)),)
    message = Tokens(
        [
            TokenEvent(REQUEST, Epoch(3), 10, [7], [b"\xf0\x9f"], None, alternatives),
            TokenEvent(REQUEST, Epoch(3), 11, [], [], "stop"),
        ]
    )
    assert decode_from_worker(encode(message)) == message


def test_a_request_in_full_comes_out_as_it_went_in() -> None:
    sampling = Sampling(
        seed=2**63 - 1, max_tokens=9, temperature=0.5, logit_bias=((3, -1.5),), grammar="root ::= x"
    )
    output = (Token(5, b"a"), Token(6, b"\x80"))
    message = Resume(MOVE, REQUEST, ModelName("m"), "digest", (1, 2, 3), output, sampling, 1)
    assert decode_from_peer(encode(message)) == message


@pytest.mark.parametrize("decode", [decode_from_worker, decode_from_head, decode_from_peer])
@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x90", encode(Commit(MOVE, 3))[:-1], b"\x91\xa5Other"])
def test_what_is_no_message_is_refused(decode: object, frame: bytes) -> None:
    assert callable(decode)
    with pytest.raises(ProtocolError):
        decode(frame)


def test_each_end_takes_only_what_the_other_end_may_say() -> None:
    with pytest.raises(ProtocolError):
        decode_from_worker(encode(Keep(MOVE)))
    with pytest.raises(ProtocolError):
        decode_from_head(encode(Commit(MOVE, 3)))
    with pytest.raises(ProtocolError):
        decode_from_peer(encode(Hello(WorkerId("a"), 1, 1, 1, (), None)))


@pytest.mark.parametrize(
    "event",
    [
        TokenEvent(RequestId("r"), Epoch(1), 0, [1, 2], [b"x"]),
        TokenEvent(RequestId("r"), Epoch(1), 0, [1], [b"x"], None, ((), ())),
        TokenEvent(RequestId("r"), Epoch(1), 0, [], [], "banana"),
        TokenEvent(RequestId("r"), Epoch(1), -1, [1], [b"x"]),
    ],
    ids=["fewer texts than ids", "alternatives for other ids", "an unknown finish", "before the first"],
)
def test_tokens_that_are_not_whole_are_no_message(event: TokenEvent) -> None:
    with pytest.raises(ProtocolError):
        decode_from_worker(encode(Tokens([event])))


@pytest.mark.parametrize("share", [math.nan, math.inf, -0.5, 1.5])
def test_a_share_that_is_none_is_no_message(share: float) -> None:
    kv = KvOffer(KvRange(0, 2), "layout", share, 16)
    sampling = Sampling(seed=1, max_tokens=9)
    message = Resume(MOVE, REQUEST, ModelName("m"), "digest", (1, 2, 3), (), sampling, 1, kv)
    with pytest.raises(ProtocolError):
        decode_from_peer(encode(message))
