"""Families of survival curves: from the sessions of a fleet to one table row a server. Pure.

Every family gives a row for each server and, last, one for a server without history. A fleet of which nobody
has left yet is assumed to lose each server once a day, by a hundredth of a session's weight.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from scipy.optimize import brentq  # type: ignore[import-untyped]  # scipy ships no types
from scipy.stats import CensoredData, ecdf  # type: ignore[import-untyped]  # the same

from godwit.costs.hierarchy import hierarchical
from godwit.costs.survival import GRID_S, Floats, Sessions, table
from godwit.errors import ConfigError

ASSUMED_SESSION_S = 86_400.0
_ASSUMED_WEIGHT = 0.01
_PRIOR_SESSIONS = 4.0
"""A server's own history counts for half when it has so many ended sessions."""
_MIN_OWN = 5
_SHAPES = (0.2, 20.0)

Family = Callable[[Sequence[Sessions]], Floats]
"""The sessions of n servers → cumulative hazards (n + 1, NUM_TIMES), the last row for an unknown server."""


def exponential(fleet: Sequence[Sessions]) -> Floats:
    """A constant hazard: ended sessions over all time seen, each server's mixed with that of the pool."""
    return _mixed(fleet, lambda one: np.asarray(np.exp(-_mean_rate(one) * GRID_S)))


def weibull(fleet: Sequence[Sessions]) -> Floats:
    """S(t) = exp(-(t/scale)^shape) by maximum likelihood; the pool's for a server with less than 5 ends."""
    pooled = _pool(fleet)
    of_pool = _weibull_survival(*weibull_ml(pooled), GRID_S)
    rows = [
        _weibull_survival(*weibull_ml(one), GRID_S) if len(one.ended_s) >= _MIN_OWN else of_pool
        for one in fleet
    ]
    return table(np.array([*rows, of_pool]))


def weibull_ml(sessions: Sessions) -> tuple[float, float]:
    """(scale in seconds, shape) of the greatest likelihood, censored sessions included.

    The shape solves Σ t^k ln t / Σ t^k - 1/k = mean of ln t over the ends, and scale^k = Σ t^k / ends
    (Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, section 3.4). Fewer than two
    ends say nothing of the shape: then it is 1.
    """
    ended, every = np.array(sessions.ended_s), np.array([*sessions.ended_s, *sessions.censored_s])
    if len(ended) < 2:
        return 1 / _mean_rate(sessions), 1.0
    unit = float(every.max())
    logs, mean_log = np.log(every / unit), float(np.log(ended / unit).mean())

    def score(shape: float) -> float:
        powers = np.exp(shape * logs)
        return float(powers @ logs / powers.sum()) - 1 / shape - mean_log

    low, high = _SHAPES
    if score(low) >= 0:
        shape = low
    elif score(high) <= 0:
        shape = high
    else:
        shape = float(brentq(score, low, high, xtol=1e-4))
    return unit * float((np.exp(shape * logs).sum() / len(ended)) ** (1 / shape)), shape


def kaplan_meier(fleet: Sequence[Sessions]) -> Floats:
    """The product limit of each server's sessions, mixed with that of the pool.

    Beyond the longest session the hazard is the mean one, ends over all time seen.
    """
    return _mixed(fleet, _product_limit)


FAMILIES: dict[str, Family] = {
    "exponential": exponential,
    "hierarchical": hierarchical,
    "kaplan_meier": kaplan_meier,
    "weibull": weibull,
}


def family_named(name: str) -> Family:
    """The family of that name; ConfigError lists the names that exist."""
    family = FAMILIES.get(name)
    if family is None:
        raise ConfigError(
            f"hazard.family: there is no family {name!r}; choose one of: {', '.join(sorted(FAMILIES))}"
        )
    return family


def _mixed(fleet: Sequence[Sessions], survival: Callable[[Sessions], Floats]) -> Floats:
    """Each server's own curve, mixed with the pool's, which has the weight of 4 ended sessions."""
    of_pool = survival(_pool(fleet))
    rows = []
    for one in fleet:
        weight = len(one.ended_s) / (len(one.ended_s) + _PRIOR_SESSIONS)
        rows.append(weight * survival(one) + (1 - weight) * of_pool if weight else of_pool)
    return table(np.array([*rows, of_pool]))


def _product_limit(sessions: Sessions) -> Floats:
    ended, censored = sessions.ended_s, sessions.censored_s
    rate = _mean_rate(sessions)
    if not ended:
        return np.asarray(np.exp(-rate * GRID_S))
    curve = ecdf(CensoredData(uncensored=ended, right=censored)).sf
    # Where the longest session is an end, S would be 0, which so few sessions cannot know.
    least = 0.5 / (len(ended) + len(censored))
    survival = np.maximum(curve.evaluate(GRID_S), least)
    last_s = max(*ended, *censored, 0.0)
    return np.asarray(survival * np.exp(-rate * np.maximum(0.0, GRID_S - last_s)))


def _weibull_survival(scale_s: float, shape: float, times_s: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-((times_s / scale_s) ** shape)))


def _pool(fleet: Sequence[Sessions]) -> Sessions:
    ended = tuple(chain.from_iterable(one.ended_s for one in fleet))
    censored = tuple(chain.from_iterable(one.censored_s for one in fleet))
    return Sessions(ended + censored, (True,) * len(ended) + (False,) * len(censored))


def _mean_rate(sessions: Sessions) -> float:
    """Ends per second of all time seen; what is assumed where there is no end."""
    seen_s = sum(sessions.seconds) + (sessions.live_s or 0.0)
    if num_ended := len(sessions.ended_s):
        return num_ended / seen_s
    return _ASSUMED_WEIGHT / (seen_s + _ASSUMED_WEIGHT * ASSUMED_SESSION_S)
