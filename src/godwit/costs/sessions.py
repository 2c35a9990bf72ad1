"""What is known of servers' stays, online: who is here since when, who left after how long. Pure.

Implements `scheduling.view.Hazards`. Curves are fitted when somebody asks, at most every `refit_s` seconds,
and only where something was learnt since; a question for a thousand servers is a few array operations.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from godwit.costs.families import family_named
from godwit.costs.learnt import Recent
from godwit.costs.survival import Floats, Sessions, conditional

MAX_SESSIONS = 64
"""Latest sessions of a server that count."""
MAX_SERVERS = 8192
HORIZON_S = 600.0
"""How far people are told of."""
_SHORTEST_S = 1e-3


class LeavingEstimate(Struct, frozen=True):
    """One server: `n` sessions of it are over, `num_ended` of them by its leaving; it is here for `age_s`.

    `leaves_within_10_min` is the probability; `notice_s` until the moment by which it said that it leaves.
    """

    worker: str
    n: int
    num_ended: int
    age_s: float
    leaves_within_10_min: float
    notice_s: float | None
    family: str


class SessionHazards:
    """Survival of each server at its age, from the sessions of all. Not thread-safe.

    `family` is one of `families.FAMILIES`; ConfigError for another one. Times are the caller's clock.
    """

    def __init__(self, family: str = "hierarchical", refit_s: float = 30.0) -> None:
        self.family = family
        self._fit = family_named(family)
        self._refit_s = refit_s
        self._over: Recent[str, deque[tuple[float, bool]]] = Recent(MAX_SERVERS)
        self._since_s: dict[str, float] = {}
        self._lives: dict[str, tuple[int, float]] = {}
        self._notices: dict[str, float] = {}
        self._is_dirty = True
        self._fitted_s = float("-inf")
        self._rows: dict[str, int] = {}
        self._tables: Floats = np.zeros((0, 0))

    def learn(self, worker: str, seconds: float, *, is_ended: bool) -> None:
        """A session is over after so long: it ended, or else nobody saw how it went on."""
        over = self._over.setdefault(worker, lambda: deque(maxlen=MAX_SESSIONS))
        over.append((max(seconds, _SHORTEST_S), is_ended))
        self._is_dirty = True

    def interrupted(self, worker: str, incarnation: int, since_s: float, seconds: float) -> None:
        """A session was cut off because the head stopped; should that life of the worker come back, it
        was here all along."""
        self.learn(worker, seconds, is_ended=False)
        self._lives[worker] = (incarnation, since_s)

    def joined(self, worker: str, now: float, incarnation: int = 0) -> None:
        """A session begins."""
        since_s, life = now, self._lives.pop(worker, None)
        if life is not None and life[0] == incarnation and (over := self._over.peek(worker)):
            over.pop()
            since_s = life[1]
        self._since_s[worker] = since_s
        self._notices.pop(worker, None)
        self._is_dirty = True

    def left(self, worker: str, now: float) -> None:
        """A session ends; one of a worker that is not here is none."""
        self._notices.pop(worker, None)
        if (since_s := self._since_s.pop(worker, None)) is not None:
            self.learn(worker, now - since_s, is_ended=True)

    def notice(self, worker: str, at_s: float) -> None:
        """The worker has said that it will be gone by then: nothing is more certain."""
        self._notices[worker] = at_s

    def survival(self, workers: Sequence[str], now: float, horizons_s: Floats) -> Floats:
        """See `scheduling.view.Hazards`."""
        self._refit(now)
        newcomer, found, since = len(self._tables) - 1, self._rows, self._since_s
        rows = np.array([found.get(worker, newcomer) for worker in workers], dtype=np.intp)
        ages_s = np.array([now - since.get(worker, now) for worker in workers])
        survival = conditional(self._tables, rows, np.maximum(ages_s, 0.0), horizons_s)
        if self._notices:
            gone_s = np.array([self._notices.get(worker, np.inf) for worker in workers])
            survival = np.where(now + horizons_s < gone_s[:, None], survival, 0.0)
        return survival

    def report(self, now: float) -> tuple[LeavingEstimate, ...]:
        """Each server that is here, by name, for people."""
        workers = sorted(self._since_s)
        survival = self.survival(workers, now, np.full((len(workers), 1), HORIZON_S))
        told = []
        for worker, stays in zip(workers, survival[:, 0], strict=True):
            over, notice = self._over.peek(worker) or (), self._notices.get(worker)
            told.append(
                LeavingEstimate(
                    worker,
                    len(over),
                    sum(is_ended for _, is_ended in over),
                    now - self._since_s[worker],
                    1 - float(stays),
                    None if notice is None else max(0.0, notice - now),
                    self.family,
                )
            )
        return tuple(told)

    def _refit(self, now: float) -> None:
        if len(self._tables) and (not self._is_dirty or now - self._fitted_s < self._refit_s):
            return
        workers = sorted({*self._over, *self._since_s})
        self._rows = {worker: row for row, worker in enumerate(workers)}
        self._tables = self._fit([self._sessions(worker, now) for worker in workers])
        self._is_dirty, self._fitted_s = False, now

    def _sessions(self, worker: str, now: float) -> Sessions:
        over, since_s = self._over.peek(worker) or (), self._since_s.get(worker)
        live_s = None if since_s is None else max(now - since_s, _SHORTEST_S)
        return Sessions(tuple(s for s, _ in over), tuple(ended for _, ended in over), live_s)
