"""Early moves: running requests leave workers before these are expected to go, where that is worth it.

Two rules say what a move costs (`costs.hazard`): *window*, by which the request goes on while it moves, and
the older *classic*, which charges a full prefill at the destination as lost time.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from godwit.costs.survival import Floats
from godwit.scheduling.choices import Choice, Step
from godwit.scheduling.clearing import MOVE_AGAIN_S
from godwit.scheduling.keeping import avoided
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.prospects import Prospects, Rule, Staying, staying
from godwit.scheduling.startup import fit
from godwit.scheduling.view import Risks, Running, Times
from godwit.types import ModelName, RequestId, WorkerId

MAX_PLACES = 32
"""The best destinations are looked at, so that a check stays cheap in a large cluster."""
REASON = "early: "
"""How the reason of such a move begins."""


class EarlySettings(Struct, frozen=True):
    """When a request moves early: by `rule`, if that is expected to save more than `hysteresis_s` (h).

    Each moves early at most `max_hops` times, and none that has less than `min_remaining` tokens left.
    Requests are looked at every `check_s`; a worker has `max_moves_per_worker` moves from and to it at once.
    """

    rule: Rule = "window"
    hysteresis_s: Annotated[float, Meta(ge=0)] = 5.0
    max_hops: Annotated[int, Meta(ge=0)] = 3
    min_remaining: Annotated[int, Meta(ge=1)] = 32
    check_s: Annotated[float, Meta(gt=0)] = 1.0
    max_moves_per_worker: Annotated[int, Meta(ge=1)] = 2


class EarlyMove(NamedTuple):
    """A move that should begin now."""

    request: RequestId
    choice: Choice
    reason: str
    resume_s: float


class EarlyMoves:
    """Looks at what runs and decides; reads the ledger, but leaves the booking to its caller."""

    def __init__(self, ledger: Ledger, times: Times, risks: Risks, settings: EarlySettings) -> None:
        self._ledger = ledger
        self._times = times
        self._risks = risks
        self._settings = settings
        self._next_s = float("-inf")
        self._num_hops: dict[RequestId, int] = {}
        self._not_before_s: dict[RequestId, float] = {}

    def forget(self, request: RequestId) -> None:
        """The request is over."""
        self._num_hops.pop(request, None)
        self._not_before_s.pop(request, None)

    def move_failed(self, request: RequestId) -> None:
        """A move ended where it began."""
        if request in self._num_hops:
            self._not_before_s[request] = self._ledger.now + MOVE_AGAIN_S

    def due(self, now: float) -> Iterator[EarlyMove]:
        """The moves that should begin now; the caller books each before it asks for the next."""
        if now < self._next_s:
            return
        self._next_s = now + self._settings.check_s
        for (model, avoid), running in self._movable(now).items():
            yield from self._of_model(model, avoid, running, now)

    def _movable(self, now: float) -> dict[tuple[ModelName, frozenset[WorkerId]], list[Running]]:
        """What runs, does not move, and may still, by model and by where it could not go on exactly; a drain
        moves its worker's requests by itself."""
        view = self._ledger.view(self._times)
        found: dict[tuple[ModelName, frozenset[WorkerId]], list[Running]] = {}
        for request, one in self._ledger.running.items():
            if one.at_s is None or one.is_moving or self._ledger.workers[one.worker].is_draining:
                continue
            if self._num_hops.get(request, 0) >= self._settings.max_hops:
                continue
            if now >= self._not_before_s.get(request, now):
                found.setdefault((one.model, avoided(view, one)[0]), []).append(one)
        return found

    def _of_model(
        self, model: ModelName, avoid: frozenset[WorkerId], running: Sequence[Running], now: float
    ) -> Iterator[EarlyMove]:
        places = self._places(model, avoid)
        who = staying(self._times, model, running, now)
        who = who.chosen(who.remaining >= self._settings.min_remaining)
        if not places or not who.requests:
            return
        prospects = Prospects(model, places, self._times, self._risks, now)
        stay_s = prospects.stay_s(who)
        is_open = stay_s - prospects.least_s(who) > self._settings.hysteresis_s
        who, stay_s = who.chosen(is_open), stay_s[is_open]
        if not who.requests:
            return
        if len(places) > MAX_PLACES:
            places = {name: places[name] for name in prospects.best(who, MAX_PLACES)}
            prospects = Prospects(model, places, self._times, self._risks, now)
        saved_s = stay_s[:, None] - prospects.move_s(who, self._settings.rule)
        # One that is only quicker elsewhere leaves nothing early, and is as likely to be lost there.
        saved_s = np.where(prospects.is_safer(who), saved_s, -np.inf)
        yield from self._ordered(model, who, prospects, saved_s)

    def _places(self, model: ModelName, avoid: frozenset[WorkerId]) -> dict[WorkerId, Choice]:
        """Where one more request of the model could go, and what that takes."""
        found = {}
        _, num_in = self._ledger.num_moves()
        for name in self._ledger.holders.get(model, ()):
            choice = None if name in avoid else self._fit(name, model)
            if choice is not None and num_in[name] < self._settings.max_moves_per_worker:
                found[name] = choice
        return found

    def _fit(self, worker: WorkerId, model: ModelName) -> Choice | None:
        choice = fit(self._ledger.view(self._times), self._ledger.workers[worker], model)
        # A model that loads for somebody else may fail to: a request would fail to move for that.
        return None if choice is None or choice.step is Step.WAIT_FOR_LOAD else choice

    def _ordered(
        self, model: ModelName, who: Staying, prospects: Prospects, saved_s: Floats
    ) -> Iterator[EarlyMove]:
        """The best move of each request that is worth it and has room, those that save most first."""
        moved: set[int] = set()
        limit = self._settings.max_moves_per_worker
        num_out, num_in = self._ledger.num_moves()
        for pair in np.argsort(-saved_s, axis=None, kind="stable").tolist():
            row, column = divmod(pair, len(prospects.names))
            saving_s, name = float(saved_s[row, column]), prospects.names[column]
            if saving_s <= self._settings.hysteresis_s:
                return
            if row in moved or num_out[who.workers[row]] >= limit or num_in[name] >= limit:
                continue
            if (choice := self._fit(name, model)) is None:
                continue
            moved.add(row)
            request, worker = who.requests[row], who.workers[row]
            self._num_hops[request] = self._num_hops.get(request, 0) + 1
            within_s = float(who.remaining[row] * who.token_s[row])
            reason = (
                f"{REASON}expected to save {saving_s:.1f} s; {worker} leaves within {within_s:.0f} s "
                f"with {prospects.leaves_within(worker, within_s):.0%}"
            )
            resume_s = self._times.resume_s(name, model, float(who.context[row]))
            num_out[worker] += 1
            num_in[name] += 1
            yield EarlyMove(request, choice, reason, resume_s)
