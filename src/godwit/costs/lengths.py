"""How many tokens a request still has to draw, by its client's guess or by what its model drew lately. Pure.

Output lengths are taken as lognormal. Once n tokens are drawn, what is left is the mean of X - n over X > n:

    E[X | X > n] = exp(mu + s²/2) · Φ((mu + s² - ln n)/s) / Φ((mu - ln n)/s)

so it never falls to 0, however far a request is beyond what was expected of it.
"""

import math
from collections import deque

from godwit.costs.learnt import Recent

ASSUMED_TOKENS, ASSUMED_SIGMA = 256.0, 1.0
"""Median and spread of outputs that nobody has seen."""
ASSUMED_HINT_SIGMA = 0.5
"""Spread of the truth around a client's guess."""
WINDOW = 256
MAX_MODELS = 1024
_PRIOR_WEIGHT = 4
_MAX_SIGMAS = 6.0
_SIGMAS = (0.05, 2.0)


class _LogSpread:
    """Mean and standard deviation of the latest logarithms; what is assumed counts as four of them."""

    def __init__(self, mean: float, sigma: float) -> None:
        self._prior = (mean, sigma)
        self._values: deque[float] = deque(maxlen=WINDOW)
        self.mean, self.sigma = mean, sigma

    def add(self, value: float) -> None:
        self._values.append(value)
        mean, sigma = self._prior
        n = len(self._values) + _PRIOR_WEIGHT
        self.mean = (sum(self._values) + _PRIOR_WEIGHT * mean) / n
        squares = sum((one - self.mean) ** 2 for one in self._values)
        prior_squares = _PRIOR_WEIGHT * (sigma**2 + (mean - self.mean) ** 2)
        self.sigma = min(max(math.sqrt((squares + prior_squares) / n), _SIGMAS[0]), _SIGMAS[1])


class OutputLengths:
    """Learns from every request that came to its end. Not thread-safe."""

    def __init__(self) -> None:
        self._outputs: Recent[str, _LogSpread] = Recent(MAX_MODELS)
        self._hints: Recent[str, _LogSpread] = Recent(MAX_MODELS)

    def remaining(
        self, model: str, num_output: float, expected_tokens: int | None, max_tokens: int | None
    ) -> float:
        """Output tokens that are expected after the first `num_output`; above 0, and within `max_tokens`.

        `expected_tokens` is the client's guess of the whole output. How far guesses were off lately counts.
        """
        if expected_tokens is not None:
            off = self._hints.get(model) or _new_hint()
            mu, sigma = math.log(max(expected_tokens, 1)) + off.mean, off.sigma
        else:
            seen = self._outputs.get(model) or _new_output()
            mu, sigma = seen.mean, seen.sigma
        left = mean_excess(mu, sigma, num_output)
        if max_tokens is not None:
            left = min(left, max_tokens - num_output)
        return max(left, 1.0)

    def learn(self, model: str, num_output: int, expected_tokens: int | None) -> None:
        """A request came to its own end after so many output tokens."""
        if num_output < 1:
            return
        self._outputs.setdefault(model, _new_output).add(math.log(num_output))
        if expected_tokens is not None:
            off = math.log(num_output / max(expected_tokens, 1))
            self._hints.setdefault(model, _new_hint).add(off)


def mean_excess(mu: float, sigma: float, n: float) -> float:
    """E[X | X > n] - n of a lognormal X; far beyond its tail, as a share of n, what it is at 6 sigma."""
    mean = math.exp(mu + sigma**2 / 2)
    if n < 1:
        return mean - n
    far = math.exp(mu + _MAX_SIGMAS * sigma)
    if n > far:
        return mean_excess(mu, sigma, far) * n / far
    z = (mu - math.log(n)) / sigma
    return mean * _normal(z + sigma) / _normal(z) - n


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _new_output() -> _LogSpread:
    return _LogSpread(math.log(ASSUMED_TOKENS), ASSUMED_SIGMA)


def _new_hint() -> _LogSpread:
    return _LogSpread(0.0, ASSUMED_HINT_SIGMA)
