"""The oracle: hazards that are the truth."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from godwit.costs.survival import Floats
from godwit.sim.spec import WorkerSpec
from godwit.types import WorkerId


class Truth:
    """Implements `scheduling.view.Hazards`: each worker stays until it goes, which is known."""

    def __init__(self, workers: Iterable[WorkerSpec]) -> None:
        self._stays = {one.name: sorted((stay.start_s, stay.end_s) for stay in one.stays) for one in workers}

    def survival(self, workers: Sequence[WorkerId], now: float, horizons_s: Floats) -> Floats:
        """1 before a worker's session ends, 0 from then on; arguments as in the protocol."""
        ends_s = np.array([self._end_s(worker, now) for worker in workers])
        return (now + horizons_s < ends_s[:, None]).astype(np.float64)

    def _end_s(self, worker: WorkerId, now: float) -> float:
        stays = self._stays[worker]
        found = bisect_right(stays, (now, float("inf"))) - 1
        return stays[found][1] if found >= 0 else now
