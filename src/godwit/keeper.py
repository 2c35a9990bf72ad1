"""What a head remembers: what happens is counted and stored, and learnt again by the next head."""

import asyncio
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from godwit.costs.choice import MoveCosts, Observation
from godwit.costs.known import Constants
from godwit.costs.sessions import SessionHazards
from godwit.costs.startup import StartupTimes
from godwit.ports import Clock
from godwit.router.metrics import RouterMetrics
from godwit.runtime.store import (
    HEAD_STOPPED,
    HEAD_STOPS,
    LoadSeen,
    OutputSeen,
    PrefillSeen,
    ResumeSeen,
    Session,
    Store,
    TokensSeen,
)
from godwit.scheduling.catalog import Catalog
from godwit.scheduling.early import REASON
from godwit.scheduling.eventlog import EventLog, LogEntry
from godwit.types import LoadRecord, ModelName, RequestId, WorkerId

ALIVE_EVERY_S = 60.0
_MAX_REQUESTS = 20_000


class KeptCosts(MoveCosts):
    """Move costs whose lessons are stored."""

    def __init__(self, known: Constants | None, store: Store) -> None:
        super().__init__(known)
        self._store = store
        for seen in store.latest(Observation):
            super().learn(seen)

    def learn(self, seen: Observation) -> None:
        """Take what a move took, and store it."""
        super().learn(seen)
        self._store.observe(seen)


def stays(sessions: Iterable[Session]) -> tuple[list[Session], list[Session]]:
    """Sessions that ended, and those that only the head's end cut off.

    A life of a worker that was there before a head ended and after the next one began was there all along.
    """
    ended: list[Session] = []
    cut_off: dict[tuple[WorkerId, int], Session] = {}
    for one in sessions:
        life = (one.worker, one.incarnation)
        earlier = cut_off.pop(life, one)
        session = replace(one, joined_at=earlier.joined_at)
        if session.reason in (HEAD_STOPPED, HEAD_STOPS):
            cut_off[life] = session
        elif session.left_at is not None:
            ended.append(session)
    return ended, list(cut_off.values())


class Keeper:
    """Implements `scheduling.recorder.Keeper`. `times` and `costs` begin from `known` and what is stored.

    So do the `hazards`, curves of `family` (ConfigError); they know the head's clock, `now`.
    """

    def __init__(
        self,
        store: Store,
        metrics: RouterMetrics,
        known: Constants | None,
        family: str = "hierarchical",
        now: Clock = time.monotonic,
        wall_now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self.times = StartupTimes(known, on_error=metrics.startup_error)
        self.costs = KeptCosts(known, store)
        self.hazards = SessionHazards(family)
        self._added = {ModelName(model.name): model for model in store.added()}
        self._pinned = store.pins()
        self._alive_s = float("-inf")
        self._last_seq = 0
        self._waits_since_s: dict[RequestId, float | None] = {}
        self._learn(store)
        ended, cut_off = stays(store.sessions())
        for session in ended:
            self.hazards.learn(session.worker, _seconds(session), is_ended=True)
        for session in cut_off:
            since_s = now() - (wall_now() - session.joined_at)
            self.hazards.interrupted(session.worker, session.incarnation, since_s, _seconds(session))

    def _learn(self, store: Store) -> None:
        for load in store.latest(LoadSeen):
            self.times.learn_load(load.worker, load.record)
        for move in store.latest(ResumeSeen):
            self.times.learn_resume(move.worker, move.model, move.context_tokens, None, move.seconds)
        for drawn in store.latest(TokensSeen):
            self.times.learn_tokens(drawn.worker, drawn.model, drawn.num_tokens, drawn.seconds)
        for first in store.latest(PrefillSeen):
            self.times.learn_prefill(first.worker, first.model, first.context_tokens, first.seconds)
        for output in store.latest(OutputSeen):
            self.times.learn_output(output.model, output.num_output, output.expected_tokens)

    # --- what the recorder tells ----------------------------------------------------------------------------

    def load(self, worker: WorkerId, record: LoadRecord) -> None:
        """A load is over."""
        self._store.observe(LoadSeen(worker, record))
        self._metrics.load(record.tier, record.num_bytes, record.seconds)

    def resume(self, worker: WorkerId, model: ModelName, context_tokens: int, seconds: float) -> None:
        """A move to a worker was ready after so many seconds."""
        self._store.observe(ResumeSeen(worker, model, context_tokens, seconds))

    def tokens(self, worker: WorkerId, model: ModelName, num_tokens: int, seconds: float) -> None:
        """A request has drawn tokens on a worker."""
        self._store.observe(TokensSeen(worker, model, num_tokens, seconds))

    def prefill(self, worker: WorkerId, model: ModelName, context_tokens: int, seconds: float) -> None:
        """A request that began on a worker had its first token after so many seconds."""
        self._store.observe(PrefillSeen(worker, model, context_tokens, seconds))

    def output(self, model: ModelName, num_output: int, expected_tokens: int | None) -> None:
        """A request came to its own end."""
        self._store.observe(OutputSeen(model, num_output, expected_tokens))

    # --- what the head tells --------------------------------------------------------------------------------

    def joined(self, worker: WorkerId, incarnation: int) -> None:
        """A worker's session begins."""
        self._store.joined(worker, incarnation)

    def left(self, worker: WorkerId, reason: str) -> None:
        """A worker's session is over."""
        self._store.left(worker, reason)

    def restore(self, catalog: Catalog) -> None:
        """Add and pin what was added and pinned before."""
        catalog.added.update(self._added)
        catalog.pinned.update(self._pinned)

    def keep(self, catalog: Catalog) -> "asyncio.Future[None]":
        """Store what is added and pinned by now; done when that is written."""
        self._sync(catalog)
        return asyncio.wrap_future(self._store.written())

    def _sync(self, catalog: Catalog) -> None:
        for name, settings in catalog.added.items():
            if self._added.get(name) != settings:
                self._store.add_model(settings)
        for name in self._added.keys() - catalog.added.keys():
            self._store.remove_model(name)
        for name in self._pinned ^ catalog.pinned:
            self._store.pin(name, is_pinned=name in catalog.pinned)
        self._added, self._pinned = dict(catalog.added), set(catalog.pinned)

    def tick(self, now: float, log: EventLog, catalog: Catalog) -> None:
        """Count what the log has new, note that the head is alive, and store what was added or pinned by
        somebody who did not wait for it; call it several times a second."""
        if catalog.added != self._added or catalog.pinned != self._pinned:
            self._sync(catalog)
        if now - self._alive_s >= ALIVE_EVERY_S:
            self._alive_s = now
            self._store.alive()
        for entry in log.entries(self._last_seq):
            self._count(entry)
        self._last_seq = log.last_seq

    def _count(self, entry: LogEntry) -> None:
        match entry.kind:
            case "Preempt":
                self._metrics.preemption()
            case "Unload":
                self._metrics.eviction()
            case "Move" if entry.reason.startswith(REASON):
                self._metrics.early_move()
            case "RequestQueued" if entry.request is not None:
                # One that waits again, since its server is gone, is not new.
                self._waits_since_s.setdefault(entry.request, entry.at_s)
            case "Start" if entry.request is not None:
                since_s = self._waits_since_s.get(entry.request)
                if since_s is not None:
                    self._metrics.startup.observe(entry.at_s - since_s)
                self._waits_since_s[entry.request] = None
            case "RequestEnded" | "Reject" if entry.request is not None:
                self._waits_since_s.pop(entry.request, None)
        if len(self._waits_since_s) > _MAX_REQUESTS:
            # Only a log that has forgotten ends before they were counted leads here.
            self._waits_since_s.clear()


def _seconds(session: Session) -> float:
    return 0.0 if session.left_at is None else session.left_at - session.joined_at
