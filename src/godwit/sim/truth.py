"""Hazards that need no estimate: when each worker leaves, or the law that this is drawn from."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from godwit.costs.survival import Floats
from godwit.scheduling.view import Hazards
from godwit.sim.spec import Knowledge, Stay, WorkerSpec
from godwit.types import WorkerId


def known_hazards(knows: Knowledge, workers: Sequence[WorkerSpec]) -> Hazards | None:
    """What a head is told (`spec.Policies.knows`); None: it must estimate."""
    if knows == "history":
        return None
    return Truth(workers) if knows == "leaving" else Laws(workers)


class _Sessions:
    def __init__(self, workers: Sequence[WorkerSpec]) -> None:
        self._stays = {one.name: sorted(one.stays, key=lambda stay: stay.start_s) for one in workers}

    def at(self, worker: WorkerId, now: float) -> Stay:
        """The worker's session at `now`, or its last one before; an empty one where there was none."""
        stays = self._stays[worker]
        found = bisect_right(stays, now, key=lambda stay: stay.start_s) - 1
        return stays[found] if found >= 0 else Stay(now, now)


class Truth:
    """Implements `scheduling.view.Hazards`: each worker stays until it goes, which is known."""

    def __init__(self, workers: Sequence[WorkerSpec]) -> None:
        self._sessions = _Sessions(workers)

    def survival(self, workers: Sequence[WorkerId], now: float, horizons_s: Floats) -> Floats:
        """1 before a worker's session ends, 0 from then on; arguments as in the protocol."""
        ends_s = np.array([self._sessions.at(worker, now).end_s for worker in workers])
        return (now + horizons_s < ends_s[:, None]).astype(np.float64)


class Laws:
    """Implements `scheduling.view.Hazards`: each worker's Weibull law is known: no estimate can be better.

    A worker whose stays were drawn from none stays.
    """

    def __init__(self, workers: Sequence[WorkerSpec]) -> None:
        self._sessions = _Sessions(workers)
        self._laws = {
            one.name: (float("inf"), 1.0) if one.life is None else (one.life.scale_s, one.life.shape)
            for one in workers
        }

    def survival(self, workers: Sequence[WorkerId], now: float, horizons_s: Floats) -> Floats:
        """exp((a/s)^k - ((a + t)/s)^k) at age a; arguments as in the protocol."""
        scale_s, shape = np.array([self._laws[worker] for worker in workers]).T[:, :, None]
        ages_s = np.array([[now - self._sessions.at(worker, now).start_s] for worker in workers])
        return np.asarray(np.exp((ages_s / scale_s) ** shape - ((ages_s + horizons_s) / scale_s) ** shape))
