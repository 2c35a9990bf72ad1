"""Early moves: running requests leave workers before these are expected to go, where that is worth it.

Two rules say what a move costs (`costs.hazard`): *window*, by which the request goes on while it moves, and
the older *classic*, which charges a full prefill at the destination as lost time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from godwit.costs.hazard import Recompute, Side, cost_s, window_cost_s
from godwit.costs.survival import Floats
from godwit.scheduling.choices import Choice, Step
from godwit.scheduling.completion import move_lines, prefill_lines, recompute_elsewhere
from godwit.scheduling.ledger import Ledger
from godwit.scheduling.startup import fit
from godwit.scheduling.view import Risks, Running, Times
from godwit.types import ModelName, RequestId, WorkerId

Rule = Literal["window", "classic"]
MAX_DESTINATIONS = 32
"""The best ones are looked at, so that a check stays cheap in a large cluster."""
MOVE_AGAIN_S = 5.0
"""After an early move that failed, its request stays where it is for so long."""
PAUSE_STEPS = 2.0
"""A handover costs about so many decode steps of the destination: δ."""


class EarlySettings(Struct, frozen=True):
    """When a request moves early: by `rule`, if that is expected to save more than `hysteresis_s` (h).

    Each moves early at most `max_hops` times, and none that has less than `min_remaining` tokens left.
    Requests are looked at every `check_s`; a worker has `max_moves_per_worker` such moves from and to it at
    once.
    """

    rule: Rule = "window"
    hysteresis_s: float = 5.0
    max_hops: int = 3
    min_remaining: int = 32
    check_s: float = 1.0
    max_moves_per_worker: int = 2


class EarlyMove(NamedTuple):
    """A move that should begin now."""

    request: RequestId
    choice: Choice
    reason: str
    resume_s: float


class _Staying(NamedTuple):
    """Requests of one model that may move: where they are, and what is expected of them."""

    requests: list[RequestId]
    workers: list[WorkerId]
    context: Floats
    remaining: Floats
    token_s: Floats

    def chosen(self, keep: npt.NDArray[np.bool_]) -> "_Staying":
        index = np.flatnonzero(keep)
        return _Staying(
            [self.requests[i] for i in index],
            [self.workers[i] for i in index],
            self.context[index],
            self.remaining[index],
            self.token_s[index],
        )


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
        """The moves that should begin now, those that save most first; the caller books each before it asks
        for the next."""
        if now < self._next_s:
            return
        self._next_s = now + self._settings.check_s
        for model, running in self._movable(now).items():
            yield from self._of_model(model, running, now)

    def _movable(self, now: float) -> dict[ModelName, list[Running]]:
        """What runs, does not move, and may still; a drain moves its worker's requests by itself."""
        found: dict[ModelName, list[Running]] = {}
        for request, one in self._ledger.running.items():
            if one.at_s is None or one.is_moving or self._ledger.workers[one.worker].is_draining:
                continue
            if self._num_hops.get(request, 0) >= self._settings.max_hops:
                continue
            if now >= self._not_before_s.get(request, now):
                found.setdefault(one.model, []).append(one)
        return found

    def _of_model(self, model: ModelName, running: Sequence[Running], now: float) -> Iterator[EarlyMove]:
        places = self._destinations(model)
        staying = self._staying(model, running, now)
        if not places or not staying.requests:
            return
        reference = float((staying.context + staying.remaining).mean())
        names = list(places)
        of_source = recompute_elsewhere(
            self._times, model, names, staying.workers, reference, self._risks.stall_s
        )
        stay_s = cost_s(
            self._survival(staying.workers, now),
            np.zeros_like(staying.context),
            staying.context,
            staying.remaining,
            staying.token_s,
            of_source,
        )
        fastest_s = min(self._times.token_s(name, model) for name in names)
        # Nobody can save more than its expected loss and what a faster server saves.
        least_s = staying.remaining * np.minimum(staying.token_s, fastest_s)
        is_open = stay_s - least_s > self._settings.hysteresis_s
        staying, stay_s = staying.chosen(is_open), stay_s[is_open]
        if staying.requests:
            names = self._best(model, names, reference, staying, now)
            move_s = self._move_costs_s(model, staying, {name: places[name] for name in names}, now)
            yield from self._ordered(model, staying, names, stay_s, move_s, now)

    def _destinations(self, model: ModelName) -> dict[WorkerId, Choice]:
        """Where one more request of the model could go, and what that takes."""
        view = self._ledger.view(self._times)
        found = {}
        for name in view.holders.get(model, ()):
            choice = fit(view, view.workers[name], model)
            # A model that loads for somebody else may fail to: a request would fail to move for that.
            if choice is not None and choice.step is not Step.WAIT_FOR_LOAD:
                found[name] = choice
        return found

    def _staying(self, model: ModelName, running: Sequence[Running], now: float) -> _Staying:
        token_s = np.array([self._times.token_s(one.worker, model) for one in running])
        outputs = [one.output_tokens(now, t) for one, t in zip(running, token_s.tolist(), strict=True)]
        remaining = np.array(
            [
                self._times.remaining_tokens(model, output, one.ask.expected_tokens, one.ask.max_tokens)
                for one, output in zip(running, outputs, strict=True)
            ]
        )
        context = np.array(
            [one.context_tokens(now, t) for one, t in zip(running, token_s.tolist(), strict=True)]
        )
        every = _Staying(
            [one.request for one in running], [one.worker for one in running], context, remaining, token_s
        )
        return every.chosen(remaining >= self._settings.min_remaining)

    def _survival(self, workers: Sequence[WorkerId], now: float) -> Callable[[Floats], Floats]:
        return lambda horizons_s: self._risks.hazards.survival(workers, now, horizons_s)

    def _best(
        self, model: ModelName, names: list[WorkerId], reference: float, staying: _Staying, now: float
    ) -> list[WorkerId]:
        """The destinations that would be best for a typical request of these."""
        if len(names) <= MAX_DESTINATIONS:
            return names
        overhead_s, per_token_s = prefill_lines(self._times, model, names)
        context, remaining = (np.full(len(names), one.mean()) for one in (staying.context, staying.remaining))
        costs = cost_s(
            self._survival(names, now),
            overhead_s + per_token_s * context,
            context,
            remaining,
            np.array([self._times.token_s(name, model) for name in names]),
            recompute_elsewhere(self._times, model, names, names, reference, self._risks.stall_s),
        )
        return [names[i] for i in np.argsort(costs, kind="stable")[:MAX_DESTINATIONS]]

    def _move_costs_s(
        self, model: ModelName, staying: _Staying, places: dict[WorkerId, Choice], now: float
    ) -> Floats:
        """E of moving each request (rows) to each place (columns); infinite to where it is."""
        names, times, stall_s = list(places), self._times, self._risks.stall_s
        num_requests, num_places = len(staying.requests), len(names)
        # All pairs in one row: each request's values as often as there are places, and so on.
        sources = [worker for worker in staying.workers for _ in names]
        targets = names * num_requests
        context, remaining, source_token_s = (
            np.repeat(one, num_places) for one in (staying.context, staying.remaining, staying.token_s)
        )
        token_s, load_s = (
            np.tile(one, num_requests)
            for one in (
                np.array([times.token_s(name, model) for name in names]),
                np.array([places[name].seconds for name in names]),
            )
        )
        reference = float((context + remaining).mean())
        to = _tiled(recompute_elsewhere(times, model, names, names, reference, stall_s), num_requests)
        destination = Side(self._survival(targets, now), token_s, to)
        if self._settings.rule == "classic":
            overhead_s, per_token_s = (
                np.tile(one, num_requests) for one in prefill_lines(times, model, names)
            )
            start_s = load_s + overhead_s + per_token_s * context
            costs = cost_s(destination.survival, start_s, context, remaining, token_s, to)
        else:
            of_source = recompute_elsewhere(times, model, names, staying.workers, reference, stall_s)
            repeated = Recompute(
                np.repeat(of_source.overhead_s, num_places),
                np.repeat(of_source.per_token_s, num_places),
                stall_s,
            )
            source = Side(self._survival(sources, now), source_token_s, repeated)
            overhead_s, per_token_s = (np.tile(one, num_requests) for one in move_lines(times, model, names))
            window_s = load_s + overhead_s + per_token_s * context
            pause_s = PAUSE_STEPS * token_s
            costs = window_cost_s(source, destination, window_s, pause_s, context, remaining)
        is_there = np.array([one == other for one, other in zip(sources, targets, strict=True)])
        return np.where(is_there, np.inf, costs).reshape(num_requests, num_places)

    def _ordered(
        self,
        model: ModelName,
        staying: _Staying,
        names: list[WorkerId],
        stay_s: Floats,
        move_s: Floats,
        now: float,
    ) -> Iterator[EarlyMove]:
        """The best move of each request that is worth it and has room, those that save most first."""
        saved_s = stay_s[:, None] - move_s
        moved: set[int] = set()
        for pair in np.argsort(-saved_s, axis=None, kind="stable").tolist():
            row, column = divmod(pair, len(names))
            saving_s = float(saved_s[row, column])
            if saving_s <= self._settings.hysteresis_s:
                return
            if row in moved or self._is_busy(staying.workers[row], names[column]):
                continue
            view = self._ledger.view(self._times)
            choice = fit(view, view.workers[names[column]], model)
            if choice is None or choice.step is Step.WAIT_FOR_LOAD:
                continue
            moved.add(row)
            request = staying.requests[row]
            self._num_hops[request] = self._num_hops.get(request, 0) + 1
            resume_s = self._times.resume_s(names[column], model, float(staying.context[row]))
            yield EarlyMove(request, choice, self._reason(staying, row, saving_s, now), resume_s)

    def _is_busy(self, source: WorkerId, destination: WorkerId) -> bool:
        limit = self._settings.max_moves_per_worker
        return self._ledger.num_moves(source)[0] >= limit or self._ledger.num_moves(destination)[1] >= limit

    def _reason(self, staying: _Staying, row: int, saving_s: float, now: float) -> str:
        worker, within_s = staying.workers[row], float(staying.remaining[row] * staying.token_s[row])
        stays = float(self._risks.hazards.survival([worker], now, np.array([[within_s]]))[0, 0])
        return (
            f"early: expected to save {saving_s:.1f} s; {worker} leaves within {within_s:.0f} s "
            f"with {1 - stays:.0%}"
        )


def _tiled(one: Recompute, times: int) -> Recompute:
    return Recompute(np.tile(one.overhead_s, times), np.tile(one.per_token_s, times), one.stall_s)
