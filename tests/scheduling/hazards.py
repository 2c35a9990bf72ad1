"""Hazards for tests: an oracle, and servers that leave at a constant rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from godwit.costs.survival import Floats
from godwit.types import WorkerId


@dataclass
class Oracle:
    """Knows when each worker leaves; the others stay for ever."""

    leaves_s: dict[str, float] = field(default_factory=dict)

    def survival(self, workers: Sequence[WorkerId], now: float, horizons_s: Floats) -> Floats:
        leaves_s = np.array([self.leaves_s.get(worker, np.inf) for worker in workers])
        return (now + horizons_s < leaves_s[:, None]).astype(np.float64)


@dataclass
class Rates:
    """S(t) = exp(-rate · t), rate 0 where none is given."""

    rates: Mapping[str, float] = field(default_factory=dict)

    def survival(self, workers: Sequence[WorkerId], now: float, horizons_s: Floats) -> Floats:
        del now
        rates = np.array([self.rates.get(worker, 0.0) for worker in workers])
        return np.asarray(np.exp(-rates[:, None] * horizons_s))
