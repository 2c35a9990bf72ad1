"""How far a sequence computes while KV is on its way: a pure function, and where the two sides meet."""

import pytest

from godwit.protocol.awaiting import AwaitedKv, Block
from godwit.types import KvOffer, KvRange

NUM_TOKENS = 320
SIZE = 16


def awaited(share: float, last: int = NUM_TOKENS, size: int = SIZE) -> AwaitedKv:
    return AwaitedKv(KvOffer(KvRange(0, last), "layout", share, size))


def block(first: int, last: int) -> Block:
    return Block(KvRange(first, last), bytearray(1))


def test_kv_in_order_is_waited_for_and_taken_as_it_comes() -> None:
    kv = awaited(0.0)
    assert kv.limit(0, NUM_TOKENS + 1) == 0
    kv.put(block(0, 16))
    assert kv.take(0) == block(0, 16) and kv.take(16) is None
    assert kv.limit(16, NUM_TOKENS + 1) == 16, "it computes what is on its way"
    kv.is_over = True
    assert kv.is_done(16) and kv.limit(16, NUM_TOKENS + 1) == NUM_TOKENS + 1


@pytest.mark.parametrize(("compute_tps", "ship_tps"), [(200, 200), (200, 50), (50, 400), (200, 10_000)])
@pytest.mark.parametrize("error", [0.5, 1.0, 2.0])
def test_the_two_sides_meet_soon_after_they_could_at_best(
    compute_tps: float, ship_tps: float, error: float
) -> None:
    """The share is what was predicted; a link that is half or twice as fast shifts the meeting, no more."""
    share = compute_tps / (compute_tps + ship_tps)
    real_tps = ship_tps * error
    kv, computed, now_s, shipped = awaited(share), 0, 0.0, NUM_TOKENS
    while not kv.is_done(computed):
        while shipped > 0 and (NUM_TOKENS - shipped + SIZE) / real_tps <= now_s:
            kv.put(block(shipped - SIZE, shipped))
            shipped -= SIZE
        while (taken := kv.take(computed)) is not None:
            computed = taken.kv.last
        step = min(kv.limit(computed, NUM_TOKENS), computed + 64) - computed
        now_s += step / compute_tps if step else 0.001
        computed += step
    best_s = NUM_TOKENS / (compute_tps + real_tps)
    slack_s = 2 * SIZE / compute_tps + 2 * SIZE / real_tps + best_s / 10
    assert now_s <= best_s + slack_s
    assert now_s <= NUM_TOKENS / compute_tps + 0.01, "slower than computing everything"


def test_it_computes_up_to_where_a_block_begins() -> None:
    assert awaited(0.3).limit(0, NUM_TOKENS) == 48
    assert awaited(0.3).limit(40, NUM_TOKENS) == 80


def test_less_than_half_a_block_of_its_own_is_not_begun() -> None:
    kv = awaited(0.02)
    assert kv.limit(0, NUM_TOKENS) == 0


def test_what_no_block_can_fill_is_computed() -> None:
    kv = awaited(0.3, last=70)
    kv.put(block(64, 70))
    assert kv.limit(58, 71) == 64


def test_a_block_that_comes_too_late_is_dropped() -> None:
    kv = awaited(0.5)
    kv.put(block(304, 320))
    kv.put(block(288, 304))
    assert kv.take(300) is None
    assert kv.limit(300, NUM_TOKENS) == 304
    assert kv.take(304) == block(304, 320)
    assert kv.is_done(320)


def test_blocks_that_are_here_are_used_when_no_more_come() -> None:
    kv = awaited(0.02)
    kv.put(block(160, 320))
    kv.is_over = True
    assert not kv.is_done(0) and kv.limit(0, NUM_TOKENS + 1) == 160
    assert kv.take(160) == block(160, 320) and kv.is_done(320)
