"""Synthetic load: when requests arrive, for which model, and how much they ask for. Pure.

Every draw comes from the caller's generator, so that one seed gives the same load again.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

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
    """Times of exactly round(rate · seconds) arrivals within [0, seconds), in order.

    They are Gamma gaps whose sum is scaled to `seconds`, which is what such gaps are given their sum. Without
    that, a few minutes of a bursty process would have anything from none to several times the wanted load.
    """
    count = round(rate_per_s * seconds)
    gaps_s = gamma_gaps_s(rng, count + 1, rate_per_s, cv)
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
