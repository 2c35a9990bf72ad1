"""How many bytes the KV cache of a range of tokens takes."""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable
from itertools import pairwise

from msgspec import Struct


class KvSize(Struct, frozen=True):
    """KV bytes of the most recent n tokens of a context, as points (tokens, bytes) joined by lines.

    Everything that a move ships ends where the context ends: all of it, the tail of a round, the suffix of a
    split. So its size depends on its length alone, and for full attention it is linear. Under a sliding
    window it is not: only the most recent tokens have KV in the windowed layers, so that a token takes more
    in a short range than in a long one (Gemma 3 270M: 18 kB against 10.6 kB). Beyond the last point the last
    line goes on. ValueError where the first point is not (0, 0), there is no other, tokens do not rise, or
    bytes fall.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if len(self.points) < 2 or self.points[0] != (0, 0):
            raise ValueError("KV sizes start with the point (0, 0) and have at least one more")
        for (tokens, size), (next_tokens, next_size) in pairwise(self.points):
            if not (tokens < next_tokens < math.inf and size <= next_size < math.inf):
                raise ValueError(
                    f"after {tokens} tokens with {size} bytes there cannot be {next_tokens} with {next_size}"
                )

    @classmethod
    def linear(cls, bytes_per_token: float) -> "KvSize":
        """Full attention: every token takes the same."""
        return cls(((0.0, 0.0), (1.0, float(bytes_per_token))))

    @classmethod
    def measured(cls, points: Iterable[tuple[float, float]]) -> "KvSize":
        """From measured (tokens, bytes), in any order, each length once; (0, 0) is added."""
        return cls(((0.0, 0.0), *sorted(points)))

    @classmethod
    def known(cls, bytes_per_token: float, points: Collection[tuple[float, float]]) -> "KvSize":
        """From measured points where there are any, else the same for every token."""
        return cls.measured(points) if points else cls.linear(bytes_per_token)

    def bytes(self, first: float, last: float) -> float:
        """Bytes of tokens [first, last) in a context of `last` tokens; ValueError unless 0 ≤ first ≤ last.

        A range further back has lost its window: for it this is an upper bound.
        """
        if not 0 <= first <= last:
            raise ValueError(f"a range goes from 0 ≤ first to last, not from {first} to {last}")
        tokens = last - first
        i = min(bisect_right(self.points, tokens, key=lambda point: point[0]), len(self.points) - 1)
        start_tokens, start_bytes = self.points[i - 1]
        return start_bytes + (tokens - start_tokens) * self._slope(i)

    @property
    def final_bytes_per_token(self) -> float:
        """What one more token adds to a long range."""
        return self._slope(len(self.points) - 1)

    def _slope(self, i: int) -> float:
        (tokens, size), (next_tokens, next_size) = self.points[i - 1], self.points[i]
        return (next_size - size) / (next_tokens - tokens)
