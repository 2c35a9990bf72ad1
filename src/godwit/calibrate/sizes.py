"""KV bytes by range from real moves. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from msgspec import Struct

from godwit.costs.constants import Constant
from godwit.costs.fit import fit_affine

_PROPORTIONAL = 0.02
_MAX_POINTS = 24


class KvSizes(Struct, frozen=True):
    """`points` are (tokens, bytes), ascending; `is_linear` says that the bytes per token explain them all."""

    bytes_per_token: Constant
    points: tuple[tuple[float, float], ...]
    is_linear: bool


def kv_sizes(shipped: Iterable[tuple[int, int]], on: str) -> KvSizes:
    """From (tokens, bytes) of moves: the slope as bytes per token, and the points of `costs.kv.KvSize`.

    ValueError where there are fewer than three moves, or all of one length.
    """
    by_tokens: dict[int, list[int]] = defaultdict(list)
    for tokens, size in shipped:
        by_tokens[tokens].append(size)
    pairs = [(tokens, size) for tokens, sizes in by_tokens.items() for size in sizes]
    fit = fit_affine([tokens for tokens, _ in pairs], [size for _, size in pairs])
    per_token = fit.slope.measured(on, fit.residual_std)
    points = _thinned(_rising((t, median(by_tokens[t])) for t in sorted(by_tokens)))
    is_linear = per_token.value > 0 and all(
        abs(size - tokens * per_token.value) <= _PROPORTIONAL * size for tokens, size in points
    )
    return KvSizes(per_token, points, is_linear)


def _rising(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without those that are smaller than one before: more tokens never take less."""
    kept: list[tuple[float, float]] = []
    for tokens, size in points:
        if not kept or size >= kept[-1][1]:
            kept.append((float(tokens), float(size)))
    return kept


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most `_MAX_POINTS` of them, the first and the last among them."""
    if len(points) <= _MAX_POINTS:
        return tuple(points)
    step = (len(points) - 1) / (_MAX_POINTS - 1)
    return tuple(points[round(i * step)] for i in range(_MAX_POINTS))
