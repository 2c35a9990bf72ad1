"""From measured times to an overhead and a rate, as constants with their intervals. Pure.

    seconds = overhead_s + amount / rate

The line's slope is seconds per byte or token; the rate is its inverse, so its interval turns over.
"""

from collections.abc import Sequence

from msgspec import Struct

from godwit.costs.constants import Constant, Measurement
from godwit.costs.fit import AffineFit, Estimate, fit_affine_robust, fit_proportional, mean_of

Points = Sequence[tuple[float, float]]


class RateLine(Struct, frozen=True):
    """`is_bound`: the times do not surely grow with the amount, so that the rate is a lower bound only."""

    overhead_s: Constant
    rate: Constant
    is_bound: bool


def rate_line(points: Points, on: str) -> RateLine:
    """Fit (amount, seconds) without outliers.

    An intercept below 0 is no overhead: it is taken as 0, and the line through the origin is fitted instead,
    so that the two constants together still say what was measured. ValueError where there are fewer than
    three points, all of one amount, or no time at all.
    """
    amounts, seconds = [amount for amount, _ in points], [second for _, second in points]
    fit = fit_affine_robust(amounts, seconds)
    kept = [point for i, point in enumerate(points) if i not in fit.outliers]
    slope, std = fit.slope, fit.residual_std
    if slope.low > 0 and fit.intercept.value < 0:
        slope = fit_proportional([amount for amount, _ in kept], [second for _, second in kept])
    if slope.low <= 0:
        return _bounded(kept, fit, on)
    return RateLine(fit.intercept.measured(on, std), inverted(slope, 1.0, on, std), False)


def inverted(seconds: Estimate, amount: float, on: str, residual_std: float | None = None) -> Constant:
    """amount / seconds with its interval; no upper end where the seconds may be 0. ValueError if they are."""
    if seconds.value <= 0:
        raise ValueError("no time passed, so there is no rate")
    high = amount / seconds.low if seconds.low > 0 else None
    measured = Measurement(on, seconds.n, amount / seconds.high, high, residual_std)
    return Constant(amount / seconds.value, measured)


def _bounded(points: Points, fit: AffineFit, on: str) -> RateLine:
    """The greatest rate that the points make sure of, and the overhead that goes with it.

    Each point by itself bounds the rate from below: all of its time may have been overhead. So does the
    steepest line in the interval of the slope. The overhead is the mean of what that rate leaves unexplained,
    so that costs in the measured range come out as measured.
    """
    floors = [amount / second for amount, second in points if second > 0]
    if fit.slope.high > 0:
        floors.append(1 / fit.slope.high)
    floor = max(floors, default=0.0)
    if floor <= 0:
        raise ValueError("no time passed, so there is no rate")
    left = mean_of([second - amount / floor for amount, second in points])
    rate = Constant(floor, Measurement(on, len(points), floor, None, fit.residual_std))
    return RateLine(left.measured(on, fit.residual_std), rate, True)
