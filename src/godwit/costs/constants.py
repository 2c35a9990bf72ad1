"""A constant and where it comes from, so that no table shows a guess as if somebody had measured it."""

import math

from msgspec import Struct


class Measurement(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where and when a constant was measured, from how many samples, and its 95 % interval.

    `high` None means that there is no upper end: the value is then a lower bound. `residual_std` is what the
    samples scatter around the fit that gave it, in the unit of what was fitted. ValueError where there is no
    sample, or the interval is upside down.
    """

    on: str
    n: int
    low: float
    high: float | None
    residual_std: float | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"a measurement has at least one sample, not {self.n}")
        if self.high is not None and not self.low <= self.high:
            raise ValueError(f"an interval goes from low to high, not from {self.low} to {self.high}")


class Constant(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A constant of the cost model, in the unit that its name ends with; ValueError where it is not a
    finite number ≥ 0, since all of them are seconds, bytes or rates."""

    value: float
    measured: Measurement | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ValueError(f"a constant is a finite number of at least 0, not {self.value}")

    @property
    def provenance(self) -> str:
        """ "assumed", or "measured on …, n = …, 95 % interval […]"."""
        if self.measured is None:
            return "assumed"
        m = self.measured
        end = "∞)" if m.high is None else f"{m.high:.6g}]"
        return f"measured on {m.on}, n = {m.n}, 95 % interval [{m.low:.6g}, {end}"
