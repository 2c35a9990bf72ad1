"""How far predictions were from what then happened."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct


class ErrorSummary(Struct, frozen=True):
    """Absolute errors in seconds (median and 95th percentile) of `n` predictions, and the median of actual -
    predicted, which is above 0 where predictions are too hopeful."""

    n: int
    p50_s: float
    p95_s: float
    bias_s: float


@dataclass(slots=True)
class PredictionErrors:
    """The errors of the latest `window` predictions. Not thread-safe."""

    window: int = 256
    _errors_s: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a window has at least 1 prediction, not {self.window}")
        self._errors_s = deque(maxlen=self.window)

    def record(self, predicted_s: float, actual_s: float) -> None:
        """One thing that was predicted has happened."""
        self._errors_s.append(actual_s - predicted_s)

    def summary(self) -> ErrorSummary | None:
        """The errors so far; None before the first."""
        if not self._errors_s:
            return None
        errors_s = np.array(self._errors_s)
        p50_s, p95_s = np.percentile(np.abs(errors_s), (50, 95)).tolist()
        return ErrorSummary(len(errors_s), p50_s, p95_s, float(np.median(errors_s)))
