"""Straight lines through measured points: once with intervals (calibration), and online with little memory.

Least squares and its intervals are the textbook's (Draper and Smith, Applied Regression Analysis, chapter 1);
the robust line is Theil's and Sen's, the median of the slopes between all pairs of points.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no types

from godwit.costs.constants import Constant, Measurement

CONFIDENCE = 0.95
MIN_POINTS = 3
_MAX_OUTLIER_SHARE = 0.25
_OUTLIER_PROBABILITY = 0.001
_SIGMA_PER_MEDIAN_DEVIATION = 1.4826
_EXACT = 1e-9

Floats = npt.NDArray[np.float64]


class Estimate(Struct, frozen=True):
    """A fitted value with its 95 % interval, from `n` points."""

    value: float
    low: float
    high: float
    n: int

    def measured(self, on: str, residual_std: float | None = None) -> Constant:
        """The estimate as a constant that was measured on `on`, say a machine and a date.

        Costs cannot be negative, so what noise put below 0 is cut there.
        """
        low, value, high = (max(number, 0.0) for number in (self.low, self.value, self.high))
        return Constant(value, Measurement(on, self.n, low, high, residual_std))


class Line(Struct, frozen=True):
    """y = intercept + slope · x."""

    intercept: float
    slope: float

    def at(self, x: float) -> float:
        """y at x."""
        return self.intercept + self.slope * x


class AffineFit(Struct, frozen=True):
    """A fitted line: 95 % intervals, residuals y - line(x) of all points in their order, and their spread.

    `outliers` are the indices of points that were left out; the rest decided everything but their residuals.
    """

    intercept: Estimate
    slope: Estimate
    residuals: tuple[float, ...]
    residual_std: float
    outliers: tuple[int, ...] = ()

    @property
    def line(self) -> Line:
        """The line without its uncertainty."""
        return Line(self.intercept.value, self.slope.value)


def fit_affine(xs: Sequence[float], ys: Sequence[float]) -> AffineFit:
    """Least squares; each interval is value ± t(0.975, n - 2) · standard error.

    ValueError where there are fewer than three points, or all of them have the same x.
    """
    x, y = _points(xs, ys)
    return _least_squares(x, y, np.ones(len(x), dtype=np.bool_))


def fit_proportional(xs: Sequence[float], ys: Sequence[float]) -> Estimate:
    """The slope of the least-squares line through the origin; value ± t(0.975, n - 1) · standard error.

    ValueError where there are fewer than two points, or all x are 0.
    """
    x, y = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
    if len(x) < 2 or not x.any():
        raise ValueError("a slope with an interval needs at least 2 points, not all of them at 0")
    slope = float(x @ y) / float(x @ x)
    residuals = y - slope * x
    error = float(residuals @ residuals / (len(x) - 1) / (x @ x)) ** 0.5
    margin = float(stdtrit(len(x) - 1, (1 + CONFIDENCE) / 2)) * error
    return Estimate(slope, slope - margin, slope + margin, len(x))


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean; value ± t(0.975, n - 1) · standard error. ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError(f"a mean with an interval needs at least 2 values, not {len(values)}")
    return fit_proportional([1.0] * len(values), values)


def fit_affine_robust(xs: Sequence[float], ys: Sequence[float]) -> AffineFit:
    """Least squares without outliers, so that one slow move does not spoil a constant.

    Outliers are points as far from the Theil–Sen line as noise puts one point in a thousand; the noise is
    taken from the median distance. At most a quarter of the points is left out, the farthest first.
    ValueError as for `fit_affine`.
    """
    x, y = _points(xs, ys)
    line = _theil_sen(x, y)
    distance = np.abs(y - line.intercept - line.slope * x)
    # Two of n points always lie on a line's median side, whatever the noise: hence n - 2 as in least squares.
    sigma = _SIGMA_PER_MEDIAN_DEVIATION * float(np.median(distance)) * (len(x) / (len(x) - 2)) ** 0.5
    # Student's t, since few points give a poor deviation: 4 of them need 32 of it, 60 of them 3.5.
    sigmas = float(stdtrit(len(x) - 2, 1 - _OUTLIER_PROBABILITY / 2))
    limit = max(sigmas * sigma, _EXACT * float(np.abs(y).max()))
    worst_first = np.argsort(-distance, kind="stable")[: int(len(x) * _MAX_OUTLIER_SHARE)]
    keep = np.ones(len(x), dtype=np.bool_)
    keep[worst_first[distance[worst_first] > limit]] = False
    if np.ptp(x[keep]) == 0:
        keep[:] = True
    return _least_squares(x, y, keep)


@dataclass(slots=True)
class OnlineLine:
    """A line that is refitted to the latest `window` points; `prior` is what is assumed until there are some.

    Costs are never negative and never shrink with x, so neither do they here. The `prior` may be replaced at
    any time. Not thread-safe.
    """

    prior: Line
    window: int = 64
    _points: deque[tuple[float, float]] = field(init=False)
    _is_fitted: bool = field(init=False, default=False)
    _fitted: Line | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.window < MIN_POINTS:
            raise ValueError(f"a window has at least {MIN_POINTS} points, not {self.window}")
        self._points = deque(maxlen=self.window)

    @property
    def n(self) -> int:
        """Points that the line rests on; 0 means that it is the prior."""
        return len(self._points)

    @property
    def line(self) -> Line:
        """The present line."""
        # Fitted when it is asked for: most points are of workers that nobody asks about before the next one.
        if not self._is_fitted:
            self._is_fitted, self._fitted = True, _surely_rising(self._points)
        return self._fitted or _scaled(self.prior, self._points)

    def add(self, x: float, y: float) -> None:
        """Take one more point, and forget the oldest where the window is full."""
        self._points.append((x, y))
        self._is_fitted = False


@dataclass(slots=True)
class OnlineConstant:
    """The lower median of the prior and the latest `window` values: the prior has one vote among many.

    So a first value above the prior changes nothing before a second one agrees, one below counts at once (see
    `_scaled`), and one outlier among many moves it no further than to a neighbouring value. A `prior` that
    is replaced counts from the next value on. Not thread-safe.
    """

    prior: float
    window: int = 64
    _values: deque[float] = field(init=False)
    _prior: float = field(init=False)
    _value: float | None = field(init=False)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a window has at least 1 value, not {self.window}")
        self._values = deque(maxlen=self.window)
        self._value = self._prior = self.prior

    @property
    def n(self) -> int:
        """Values that the constant rests on; 0 means that it is the prior."""
        return len(self._values)

    @property
    def value(self) -> float:
        """The present constant."""
        if self._value is None:
            self._value = median_low((self._prior, *self._values))
        return self._value

    def add(self, value: float) -> None:
        """Take one more value, and forget the oldest where the window is full."""
        self._values.append(value)
        self._prior, self._value = self.prior, None


def _points(xs: Sequence[float], ys: Sequence[float]) -> tuple[Floats, Floats]:
    x, y = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"one y for each x: shapes {x.shape} and {y.shape}")
    if len(x) < MIN_POINTS:
        raise ValueError(f"a line with an interval needs at least {MIN_POINTS} points, not {len(x)}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("points must be finite numbers")
    if np.ptp(x) == 0:
        raise ValueError(f"a line needs points at two different x at least, not all at {x[0]:g}")
    return x, y


def _least_squares(x: Floats, y: Floats, keep: npt.NDArray[np.bool_]) -> AffineFit:
    n, mean_x = int(keep.sum()), float(x[keep].mean())
    dx = x[keep] - mean_x
    spread = float(dx @ dx)
    slope = float(dx @ y[keep]) / spread
    intercept = float(y[keep].mean()) - slope * mean_x
    residuals = y - (intercept + slope * x)
    std = float(residuals[keep] @ residuals[keep] / (n - 2)) ** 0.5
    t = float(stdtrit(n - 2, (1 + CONFIDENCE) / 2))
    slope_margin = t * std / spread**0.5
    intercept_margin = t * std * (1 / n + mean_x**2 / spread) ** 0.5
    return AffineFit(
        Estimate(intercept, intercept - intercept_margin, intercept + intercept_margin, n),
        Estimate(slope, slope - slope_margin, slope + slope_margin, n),
        tuple(residuals.tolist()),
        std,
        tuple(np.flatnonzero(~keep).tolist()),
    )


def _theil_sen(x: Floats, y: Floats) -> Line:
    first, second = np.triu_indices(len(x), k=1)
    apart = x[first] != x[second]
    first, second = first[apart], second[apart]
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first])))
    return Line(float(np.median(y - slope * x)), slope)


def _surely_rising(points: Collection[tuple[float, float]]) -> Line | None:
    """A robust line with no negative intercept; None where its slope is not surely above 0.

    Points that lie close together say nothing about intercept against slope, and a slope taken from their
    noise would be far off at other x; so until it is surely above 0 both keep the prior's ratio.
    """
    if len(points) < MIN_POINTS:
        return None
    xs, ys = zip(*points, strict=True)
    if min(xs) == max(xs) or (fit := fit_affine_robust(xs, ys)).slope.low <= 0:
        return None
    if fit.intercept.value >= 0:
        return fit.line
    return Line(0.0, median(y / x for x, y in points if x > 0))


def _scaled(prior: Line, points: Collection[tuple[float, float]]) -> Line:
    """The prior, as many times as the points say."""
    ratios = (y / prior.at(x) for x, y in points if prior.at(x) > 0)
    # The lower one: who doubts a first slow point finds out with the next, while a way that is held to be
    # slow after an accident is never taken again, and stays slow for want of points.
    scale = median_low((1.0, *ratios))
    return Line(prior.intercept * scale, prior.slope * scale)
