"""KV bytes by range."""

import pytest

from godwit.costs.kv import KvSize

WINDOWED = KvSize.measured([(2000, 21e6), (500, 9e6)])


def test_full_attention_is_linear() -> None:
    kv = KvSize.linear(128_000)
    assert kv.bytes(0, 0) == 0
    assert kv.bytes(0, 1000) == kv.bytes(9000, 10_000) == 128e6
    assert kv.final_bytes_per_token == 128_000


@pytest.mark.parametrize(
    ("tokens", "size"), [(0, 0), (250, 4.5e6), (500, 9e6), (1250, 15e6), (2000, 21e6), (3000, 29e6)]
)
def test_measured_points_are_joined_and_the_last_line_goes_on(tokens: int, size: float) -> None:
    assert WINDOWED.bytes(0, tokens) == pytest.approx(size)
    assert WINDOWED.bytes(10_000, 10_000 + tokens) == pytest.approx(size)


def test_a_recent_range_costs_more_a_token_than_everything() -> None:
    assert WINDOWED.bytes(1900, 2000) / 100 == pytest.approx(18_000)
    assert WINDOWED.bytes(0, 2000) / 2000 == pytest.approx(10_500)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ((), "at least one more"),
        (((0, 0),), "at least one more"),
        (((1, 5), (2, 6)), r"start with the point \(0, 0\)"),
        (((0, 0), (2, 6), (2, 7)), "after 2 tokens with 6 bytes there cannot be 2 with 7"),
        (((0, 0), (2, 6), (3, 5)), "cannot be 3 with 5"),
        (((0, 0), (float("nan"), 5)), "nan"),
    ],
)
def test_points_that_make_no_size_are_refused(points: tuple[tuple[float, float], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KvSize(points)


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (6, 5)])
def test_a_range_must_be_one(first: int, last: int) -> None:
    with pytest.raises(ValueError, match=f"not from {first} to {last}"):
        WINDOWED.bytes(first, last)
