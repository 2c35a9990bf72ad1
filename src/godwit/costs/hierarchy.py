"""A fleet's servers differ: each one's curve from what the fleet is like and from its own few sessions. Pure.

Every server has a Weibull curve, one of a fixed set of scales and shapes. How common each is in the fleet is
estimated by expectation-maximisation from all servers' likelihoods, with a Dirichlet prior (empirical
Bayes with a mixing distribution on a grid: Laird, JASA 1978). A server's curve is the mixture of all,
weighted by that and by the likelihood of its own ended sessions: with none it is the fleet's, and each own
session moves it. Conditioned on its age it also learns from the session under way, since S(a + t)/S(a) of a
mixture weighs each curve by how well it explains that the server is still there.
"""

from collections.abc import Sequence

import numpy as np

from godwit.costs.survival import GRID_S, Floats, Sessions, table

_SHAPES = np.array([0.5, 0.7, 1.0, 1.5, 2.2, 3.3, 5.0])
_SCALES_S = np.geomspace(2.0, 1e7, 46)
_SHAPE, _SCALE_S = (one.ravel() for one in np.meshgrid(_SHAPES, _SCALES_S))
_SHAPE_INDEX = np.searchsorted(_SHAPES, _SHAPE)
_LOG_DENSITY = np.log(_SHAPE) - _SHAPE * np.log(_SCALE_S)
_PER_SCALE = _SCALE_S**-_SHAPE
with np.errstate(over="ignore"):
    _SURVIVAL: Floats = np.exp(-((GRID_S[None, :] / _SCALE_S[:, None]) ** _SHAPE[:, None]))

_ASSUMED_SCALE_S, _ASSUMED_SIGMA = 86_400.0, 2.5
_PRIOR = np.exp(-0.5 * (np.log(_SCALE_S / _ASSUMED_SCALE_S) / _ASSUMED_SIGMA) ** 2)
_PRIOR /= _PRIOR.sum()
"""Before a fleet has shown anything its servers stay for a day, or for a twelfth or twelve times of that."""
_PRIOR_SERVERS = 2.0
"""The weight of this prior, in servers."""
_NUM_STEPS = 30


def hierarchical(fleet: Sequence[Sessions]) -> Floats:
    """Cumulative hazards (n + 1, NUM_TIMES), see `families.Family`."""
    of_history = np.array([_log_likelihood(one, with_live=False) for one in fleet]).reshape(-1, len(_SHAPE))
    of_all = np.array([_log_likelihood(one, with_live=True) for one in fleet]).reshape(-1, len(_SHAPE))
    weights = _fleet_weights(of_all)
    rows = np.concatenate((_weighted(of_history, weights), weights[None, :]))
    return table(rows @ _SURVIVAL)


def _log_likelihood(sessions: Sessions, *, with_live: bool) -> Floats:
    """Of each curve: Σ over the ends of ln(k t^(k-1) / s^k), less Σ over all of (t/s)^k."""
    every = sessions.seconds
    if with_live and sessions.live_s is not None:
        every = (*every, sessions.live_s)
    if not every:
        return np.zeros(len(_SHAPE))
    ended = sessions.ended_s
    powers = (np.array(every)[:, None] ** _SHAPES).sum(axis=0)
    likelihood: Floats = len(ended) * _LOG_DENSITY - powers[_SHAPE_INDEX] * _PER_SCALE
    if ended:
        likelihood += (_SHAPE - 1) * float(np.log(ended).sum())
    return likelihood


def _fleet_weights(log_likelihood: Floats) -> Floats:
    """How common each curve is."""
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True, initial=-np.inf))
    weights: Floats = _PRIOR
    for _ in range(_NUM_STEPS if len(likelihood) else 0):
        # Each server's posterior, summed: P(curve | its sessions).
        shares = likelihood.T @ (1 / (likelihood @ weights)) * weights
        weights = (shares + _PRIOR_SERVERS * _PRIOR) / (len(likelihood) + _PRIOR_SERVERS)
    return weights


def _weighted(log_likelihood: Floats, weights: Floats) -> Floats:
    """The weights of the curves for each server, given its likelihoods."""
    if not len(log_likelihood):
        return log_likelihood
    raw = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True)) * weights
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))
