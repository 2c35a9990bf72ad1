"""Requests that wait for a slot: first come, first served per model."""

from bisect import insort
from collections.abc import Collection, Iterable, KeysView

from msgspec import Struct
from msgspec.structs import replace

from godwit.scheduling.ask import Ask
from godwit.scheduling.events import RequestQueued
from godwit.types import MUST_KEEP, ModelName, RequestId, WorkerId


class Waiting(Struct, frozen=True):
    """A request in line `since` then: `exclude` holds for good, `avoid` until a tick.

    `reason` is what failed last.
    """

    order: tuple[bool, int]
    request: RequestId
    model: ModelName
    deadline: float
    since: float
    exclude: frozenset[WorkerId]
    avoid: frozenset[WorkerId] = frozenset()
    reason: str | None = None
    was_preempted: bool = False
    ask: Ask = Ask()

    @property
    def not_on(self) -> frozenset[WorkerId]:
        """Workers that must not be chosen now."""
        return self.exclude | self.avoid


class WaitingLines:
    """One line a model, in order of arrival, those that have started first.

    A request's place is remembered until it is forgotten, so that a Start that fails puts it back there.
    """

    def __init__(self) -> None:
        self._lines: dict[ModelName, list[Waiting]] = {}
        self._known: dict[RequestId, Waiting] = {}
        self._num_added = 0

    @property
    def models(self) -> KeysView[ModelName]:
        """Those that somebody waits for."""
        return self._lines.keys()

    @property
    def all(self) -> list[Waiting]:
        """All who are in line."""
        return [one for line in self._lines.values() for one in line]

    def by_age(self, models: Iterable[ModelName]) -> list[list[Waiting]]:
        """A copy of each of these models' lines, the one whose first has waited longest first."""
        lines = (line[:] for model in models if (line := self._lines.get(model)))
        return sorted(lines, key=lambda line: line[0].order)

    def waiting(self, model: ModelName) -> list[Waiting]:
        """A copy of one model's line."""
        return self._lines.get(model, [])[:]

    def add(self, event: RequestQueued, now: float) -> None:
        """Put a request in line; one that was there before gets its former place."""
        former = self._known.get(event.request)
        self.forget(event.request)
        self._num_added += 1
        number = self._num_added if former is None else former.order[1]
        order = (not event.has_started, number)
        self._insert(
            Waiting(
                order,
                event.request,
                event.model,
                event.deadline,
                now,
                event.exclude,
                was_preempted=event.was_preempted,
                ask=event.ask,
            )
        )

    def step_out(self, request: RequestId) -> None:
        """Take a request out of the line, if it is there, and remember its place."""
        waiting = self._known.get(request)
        if waiting is not None and waiting in (line := self._lines.get(waiting.model, [])):
            line.remove(waiting)
            if not line:
                del self._lines[waiting.model]

    def step_back(
        self, request: RequestId, avoid: WorkerId, reason: str, exclude: frozenset[WorkerId] = frozenset()
    ) -> None:
        """Return a request to its place; it avoids that worker until the next tick, and those for good."""
        waiting = self._known.get(request)
        if waiting is not None:
            excluded, avoids = waiting.exclude | exclude, waiting.avoid | {avoid}
            self._insert(replace(waiting, exclude=excluded, avoid=avoids, reason=reason))

    def forget(self, request: RequestId) -> None:
        """The request is over."""
        self.step_out(request)
        self._known.pop(request, None)

    def exclude(self, model: ModelName, worker: WorkerId, reason: str) -> None:
        """None of those who wait for the model may be sent to that worker in its present life."""
        for one in self._lines.get(model, []):
            self._known[one.request] = replace(one, exclude=one.exclude | {worker}, reason=reason)
        self._renew()

    def readmit(self, worker: WorkerId) -> None:
        """The worker has a new life: nobody excludes it any more."""
        for one in self._known.values():
            if worker in one.exclude:
                self._known[one.request] = replace(one, exclude=one.exclude - {worker})
        self._renew()

    def stop_avoiding(self) -> set[ModelName]:
        """Let all try again where there was no room; gives the models of those who could not."""
        avoiding = [one for one in self._known.values() if one.avoid]
        for one in avoiding:
            self._known[one.request] = replace(one, avoid=frozenset())
        if avoiding:
            self._renew()
        return {one.model for one in avoiding}

    def expired(self, now: float) -> list[Waiting]:
        """Those in line whose deadline has come."""
        return [one for one in self.all if one.deadline <= now]

    def _insert(self, waiting: Waiting) -> None:
        self._known[waiting.request] = waiting
        insort(self._lines.setdefault(waiting.model, []), waiting, key=lambda one: one.order)

    def _renew(self) -> None:
        for model, line in self._lines.items():
            self._lines[model] = [self._known[one.request] for one in line]


def why_not_placed(
    waiting: Waiting, num_workers: int, holders: Collection[WorkerId], unfit: frozenset[WorkerId]
) -> str:
    """Why nobody took a request in time; `unfit` could not have gone on with it (`keeping`)."""
    if not num_workers:
        return "no worker is connected; start one with `godwit worker --join URL`"
    if not holders:
        return f"no connected worker has the model {waiting.model}"
    if waiting.reason:
        return waiting.reason
    left = [worker for worker in holders if worker not in waiting.exclude]
    if not left:
        return "it has failed on all that have it"
    if unfit.issuperset(left):
        so_far = f"its {waiting.ask.context_tokens} tokens"
        in_what = " in the middle of a grammar" if MUST_KEEP.intersection(waiting.ask.promises) else ""
        return f"no server with {waiting.model} that is left can go on with {so_far}{in_what}"
    return f"all slots for {waiting.model} were taken"
