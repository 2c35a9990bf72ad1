"""How long servers stay: survival curves as tables over one time grid, conditioned on a server's age. Pure.

A row of a table is a curve's cumulative hazard H at the times of `GRID_S`, so that S(t) = exp(-H(t)). Between
two times the hazard is constant (piecewise exponential); so it is beyond the last one, and, since S(a) = 0
would make S(a + t)/S(a) meaningless, from where S has fallen below e^-20: a server that is older than any
curve allows has the hazard that the curve had last.
"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Floats = npt.NDArray[np.float64]

FIRST_S, LAST_S, NUM_TIMES = 0.5, 1e7, 257
GRID_S: Floats = np.concatenate(([0.0], np.geomspace(FIRST_S, LAST_S, NUM_TIMES - 1)))
"""From half a second to four months, each time 6.8 % after the one before."""

_LOG_STEP = float(np.log(LAST_S / FIRST_S)) / (NUM_TIMES - 2)
_MAX_HAZARD = 20.0


class Sessions(Struct, frozen=True):
    """One server's stays: the length of each that is over and whether it ended by itself, else it was cut off
    (censored); and the age of the one under way, which is censored by its nature."""

    seconds: tuple[float, ...] = ()
    is_ended: tuple[bool, ...] = ()
    live_s: float | None = None

    @property
    def ended_s(self) -> tuple[float, ...]:
        """The lengths of those that ended."""
        return tuple(s for s, ended in zip(self.seconds, self.is_ended, strict=True) if ended)

    @property
    def censored_s(self) -> tuple[float, ...]:
        """The lengths of those that did not, the one under way among them."""
        over = tuple(s for s, ended in zip(self.seconds, self.is_ended, strict=True) if not ended)
        return over if self.live_s is None else (*over, self.live_s)


def table(survival: Floats) -> Floats:
    """Cumulative hazards of curves (n, NUM_TIMES) that are given as S at `GRID_S`."""
    hazard = -np.log(np.clip(survival, np.exp(-_MAX_HAZARD), 1.0))
    hazard[:, 0] = 0.0
    is_over = hazard >= _MAX_HAZARD - 1e-9
    for row in np.flatnonzero(is_over.any(axis=1)):
        first = max(1, int(np.argmax(is_over[row])))
        rate = (hazard[row, first] - hazard[row, first - 1]) / (GRID_S[first] - GRID_S[first - 1])
        hazard[row, first:] = hazard[row, first] + rate * (GRID_S[first:] - GRID_S[first])
    return hazard


def cumulative_hazard(tables: Floats, rows: npt.NDArray[np.intp], times_s: Floats) -> Floats:
    """H of each row's curve at its times (n, k) ≥ 0."""
    with np.errstate(divide="ignore"):
        cell = np.log(times_s / FIRST_S) / _LOG_STEP
    index = (np.clip(cell, -1.0, NUM_TIMES - 3) + 1.0).astype(np.intp)
    start_s, flat = GRID_S[index], tables.ravel()
    at = rows[:, None] * NUM_TIMES + index
    before = flat[at]
    found: Floats = before + (flat[at + 1] - before) * (times_s - start_s) / (GRID_S[index + 1] - start_s)
    return found


def conditional(tables: Floats, rows: npt.NDArray[np.intp], ages_s: Floats, times_s: Floats) -> Floats:
    """S(t|a) = S(a + t)/S(a): the probability that a server of age a (n) is there t (n, k) later."""
    ages = ages_s[:, None]
    both = cumulative_hazard(tables, rows, np.concatenate((ages, ages + np.maximum(times_s, 0.0)), axis=1))
    return np.asarray(np.exp(both[:, :1] - both[:, 1:]))
