"""Emptying workers that are to leave: live moves first, interruption at the deadline, then Leave."""

from msgspec import Struct

from godwit.scheduling.choices import Choice, Step
from godwit.scheduling.events import Interrupt, Leave
from godwit.scheduling.keeping import avoided
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.policies import quickest
from godwit.scheduling.view import Times
from godwit.types import RequestId, WorkerId


class DrainSettings(Struct, frozen=True):
    """Limits of a drain: moves at once from and to one worker, and tries to move one request."""

    max_moves_per_worker: int = 2
    max_move_tries: int = 3


class _Drain(Struct):
    """One worker's drain. `avoid` holds destinations that failed since the last tick, by request."""

    deadline: float | None
    num_failed: dict[RequestId, int] = {}
    avoid: dict[RequestId, frozenset[WorkerId]] = {}
    interrupted: set[RequestId] = set()
    has_left: bool = False


class Drains:
    """All drains under way; reads the ledger and decides, but leaves the booking to its caller."""

    def __init__(self, ledger: Ledger, times: Times, settings: DrainSettings) -> None:
        self._ledger = ledger
        self._times = times
        self._settings = settings
        self._drains: dict[WorkerId, _Drain] = {}

    def begin(self, worker: WorkerId, deadline: float | None) -> None:
        """Start a drain; a second one of the same worker sets its deadline anew and tries all moves again."""
        self._drains[worker] = _Drain(deadline)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        self._drains.pop(worker, None)

    def move_failed(self, request: RequestId, destination: WorkerId) -> None:
        """A move ended where it began: if it was off a draining worker, it is tried elsewhere, then again."""
        place = self._ledger.running.get(request)
        drain = None if place is None else self._drains.get(place.worker)
        if drain is not None:
            drain.num_failed[request] = drain.num_failed.get(request, 0) + 1
            drain.avoid[request] = drain.avoid.get(request, frozenset()) | {destination}

    def stop_avoiding(self) -> None:
        """Failed destinations may be tried once more."""
        for drain in self._drains.values():
            drain.avoid.clear()

    def next_move(self, now: float) -> tuple[RequestId, Choice] | None:
        """One more move that may start now; the caller books it and asks again."""
        if not self._drains:
            return None
        limit = self._settings.max_moves_per_worker
        num_out, num_in = self._ledger.num_moves()
        busy = frozenset(name for name, number in num_in.items() if number >= limit)
        for worker, drain in self._drains.items():
            if _is_due(drain, now) or num_out[worker] >= limit:
                continue
            for request in self._staying(worker):
                choice = self._destination(request, worker, drain, busy)
                if choice is not None:
                    return request, choice
        return None

    def interrupts(self, now: float) -> list[Interrupt]:
        """What still runs on workers whose deadline has come, each request once."""
        due: list[Interrupt] = []
        for worker, drain in self._drains.items():
            if not _is_due(drain, now):
                continue
            running = {request for request, place in self._ledger.running.items() if place.worker == worker}
            reason = "the drain's deadline has come"
            due += [Interrupt(request, worker, reason) for request in sorted(running - drain.interrupted)]
            drain.interrupted |= running
        return due

    def emptied(self) -> list[Leave]:
        """Workers that have nothing left, each once."""
        leaves: list[Leave] = []
        for worker, drain in self._drains.items():
            if not drain.has_left and self._ledger.workers[worker].num_used == 0:
                drain.has_left = True
                leaves.append(Leave(worker))
        return leaves

    def _staying(self, worker: WorkerId) -> list[RequestId]:
        return [
            request
            for request, place in self._ledger.running.items()
            if place.worker == worker and request not in self._ledger.moves
        ]

    def _destination(
        self, request: RequestId, worker: WorkerId, drain: _Drain, busy: frozenset[WorkerId]
    ) -> Choice | None:
        if drain.num_failed.get(request, 0) >= self._settings.max_move_tries:
            return None
        running = self._ledger.running[request]
        not_to = frozenset((worker,)) | drain.avoid.get(request, frozenset())
        view = self._ledger.view(self._times)
        for avoid in avoided(view, running):
            choice = quickest(view, running.model, not_to | busy | avoid)
            if choice is not None:
                # A model that loads for somebody else may fail to: its requests would fail to move for that.
                return None if choice.step is Step.WAIT_FOR_LOAD else choice
            if busy and quickest(view, running.model, not_to | avoid) is not None:
                return None  # Where it can go on exactly, it will have its turn.
        return None


def _is_due(drain: _Drain, now: float) -> bool:
    return drain.deadline is not None and drain.deadline <= now
