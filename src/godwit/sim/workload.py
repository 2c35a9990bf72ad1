"""Synthetic load: when requests arrive, for which model, and how much they ask for. Pure.

Every draw comes from the caller's generator, so that one seed gives the same load again.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from godwit.sim.spec import Ask
from godwit.types import ModelName

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def gamma_gaps_s(rng: Generator, count: int, rate_per_s: float, cv: float) -> Floats:
    """`count` gaps between arrivals, in seconds, with mean 1/rate and this coefficient of variation.

    A `cv` of 1 is a Poisson process, 0 a clock; above 1 arrivals come in bursts. ValueError for a rate that
    is not above 0, or a negative cv.
    """
    if not rate_per_s > 0 or not cv >= 0:
        raise ValueError(f"a rate is above 0 and a cv at least 0, not {rate_per_s} and {cv}")
    mean_s = 1 / rate_per_s
    if cv == 0:
        return np.full(count, mean_s)
    return rng.gamma(1 / cv**2, mean_s * cv**2, count)


def arrivals_s(rng: Generator, rate_per_s: float, cv: float, seconds: float) -> Floats:
    """Times of exactly round(rate · seconds) arrivals within [0, seconds), in order; see `spread_s`.

    ValueError for a rate that is not above 0.
    """
    if not rate_per_s > 0:
        raise ValueError(f"a rate is above 0, not {rate_per_s}")
    return spread_s(rng, round(rate_per_s * seconds), cv, seconds)


def arrivals_each_s(rng: Generator, chosen: Ints, cv: float, seconds: float) -> Floats:
    """A time for each request, where those for one model (by `chosen`) are a process of their own.

    A burst is then for one model, and bursts of several models come together by chance only.
    """
    times_s = np.empty(len(chosen))
    for model in np.unique(chosen):
        its = chosen == model
        times_s[its] = spread_s(rng, int(its.sum()), cv, seconds)
    return times_s


def spread_s(rng: Generator, count: int, cv: float, seconds: float) -> Floats:
    """Times of so many arrivals within [0, seconds), in order.

    They are Gamma gaps whose sum is scaled to `seconds`, which is what such gaps are given their sum. Without
    that, a few minutes of a bursty process would have anything from none to several times the wanted load.
    """
    gaps_s = gamma_gaps_s(rng, count + 1, 1.0, cv)
    total_s = gaps_s.sum()
    if not total_s > 0:
        raise ValueError(f"a cv of {cv} is too bursty for {count} arrivals: all would come at once")
    # Rounding must not push the last one out.
    times_s = np.cumsum(gaps_s)[:-1] * (seconds / total_s)
    return np.asarray(np.minimum(times_s, np.nextafter(seconds, 0.0)))


def popularity(count: int, exponent: float) -> Floats:
    """The share of each of `count` models, the most popular first: 1/rank^exponent, scaled to a sum of 1."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


def choices(rng: Generator, shares: Floats, count: int) -> Ints:
    """`count` indices, each drawn with these shares."""
    return rng.choice(len(shares), size=count, p=shares)


def lengths(rng: Generator, count: int, median: float, sigma: float, low: int, high: int) -> Ints:
    """`count` lengths in tokens, lognormal: the median, sigma of the logarithm; cut to [low, high]."""
    drawn = np.rint(rng.lognormal(np.log(median), sigma, count))
    return np.clip(drawn, low, high).astype(np.int64)


def sampled(rng: Generator, rows: Ints, count: int) -> Ints:
    """`count` of the rows, drawn with replacement: whole ones, so that a long prompt keeps its answer."""
    return rows[rng.integers(0, len(rows), count)]


def estimates(rng: Generator, outputs: Ints, sigma: float) -> Floats:
    """What clients guess of these lengths: each one times lognormal(0, sigma)."""
    return np.asarray(outputs * rng.lognormal(0.0, sigma, len(outputs)))


def make_asks(
    times_s: Floats,
    models: Sequence[ModelName],
    tokens: Ints,
    expected: Floats | None = None,
    num_replicas: int = 1,
) -> tuple[Ask, ...]:
    """Requests at these times, each with its row (prompt, output) of `tokens` and its client's guess."""
    guesses = [None] * len(times_s) if expected is None else expected.tolist()
    return tuple(
        Ask(at_s, model, num_prompt, num_output, guess, num_replicas)
        for at_s, model, (num_prompt, num_output), guess in zip(
            times_s.tolist(), models, tokens.tolist(), guesses, strict=True
        )
    )


def replicate(shares: Floats, num_hosts: int, room: int) -> tuple[tuple[int, ...], ...]:
    """For each host the models that it has a copy of, the least popular first: at most `room`.

    Models take turns in the order of their popularity, each with copies in proportion to its share (at least
    one while there is room, at most one a host), on the host with most room left that has none.
    """
    room = min(room, len(shares))
    wanted = np.clip(np.rint(shares * num_hosts * room), 1, num_hosts)
    order = np.argsort(-shares, kind="stable").tolist()
    placed: list[list[int]] = [[] for _ in range(num_hosts)]
    turns = [(model, turn) for turn in range(num_hosts) for model in order]
    # The rounding leaves some room, which goes to the most popular models.
    for model, _ in sorted(turns, key=lambda one: one[1] >= wanted[one[0]]):
        without = [host for host in placed if model not in host and len(host) < room]
        if without:
            min(without, key=len).append(model)
    rank = {model: place for place, model in enumerate(order)}
    return tuple(tuple(sorted(host, key=lambda model: -rank[model])) for host in placed)
