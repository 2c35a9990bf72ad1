"""KV sizes from moves."""

import pytest

from godwit.calibrate.sizes import kv_sizes
from godwit.costs.kv import KvSize


def test_full_attention_is_its_bytes_per_token() -> None:
    sizes = kv_sizes([(n, 23_040 * n) for n in (500, 100, 300, 300)], "here")
    assert sizes.bytes_per_token.value == pytest.approx(23_040)
    assert sizes.is_linear
    assert [tokens for tokens, _ in sizes.points] == [100, 300, 500]


def test_a_window_needs_its_points() -> None:
    shipped = [(n, 18_000 * min(n, 512) + 8_000 * max(n - 512, 0)) for n in range(64, 1100, 16)]
    sizes = kv_sizes(shipped, "here")
    assert not sizes.is_linear and len(sizes.points) <= 24
    assert KvSize.measured(sizes.points).bytes(0, 1000) == pytest.approx(18_000 * 512 + 8_000 * 488, rel=0.01)


def test_points_that_fall_are_left_out() -> None:
    sizes = kv_sizes([(100, 1000), (101, 900), (200, 1500), (300, 2500)], "here")
    assert [tokens for tokens, _ in sizes.points] == [100, 200, 300]
    KvSize.measured(sizes.points)


def test_one_length_tells_nothing() -> None:
    with pytest.raises(ValueError, match="two different x"):
        kv_sizes([(100, 1000)] * 3, "here")
