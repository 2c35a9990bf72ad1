"""What is expected of running requests where they are, and elsewhere, by both rules for early moves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from godwit.costs.hazard import Recompute, Side, cost_s, window_cost_s
from godwit.costs.survival import Floats
from godwit.scheduling.choices import Choice
from godwit.scheduling.completion import move_lines, prefill_lines, recompute_elsewhere
from godwit.scheduling.view import Risks, Running, Times
from godwit.types import ModelName, RequestId, WorkerId

Rule = Literal["window", "classic"]
PAUSE_STEPS = 2.0
"""A handover costs about so many decode steps of the destination: δ."""


class Staying(NamedTuple):
    """Requests of one model: where they are, their contexts, and the tokens that they still have to draw."""

    requests: list[RequestId]
    workers: list[WorkerId]
    context: Floats
    remaining: Floats
    token_s: Floats

    def chosen(self, keep: npt.NDArray[np.bool_]) -> "Staying":
        """Some of them."""
        index = np.flatnonzero(keep)
        return Staying(
            [self.requests[i] for i in index],
            [self.workers[i] for i in index],
            self.context[index],
            self.remaining[index],
            self.token_s[index],
        )


def staying(times: Times, model: ModelName, running: Sequence[Running], now: float) -> Staying:
    """How far each of the model's requests is, and how much is left of it."""
    token_s = [times.token_s(one.worker, model) for one in running]
    context, remaining = [], []
    for one, each_s in zip(running, token_s, strict=True):
        ask, output = one.ask, one.output_tokens(now, each_s)
        context.append(one.context_tokens(now, each_s))
        remaining.append(times.remaining_tokens(model, output, ask.expected_tokens, ask.max_tokens))
    return Staying(
        [one.request for one in running],
        [one.worker for one in running],
        *(np.array(one, dtype=np.float64) for one in (context, remaining, token_s)),
    )


class Prospects:
    """The places where a model's requests could go now, and what that would cost; one at least."""

    def __init__(
        self, model: ModelName, places: Mapping[WorkerId, Choice], times: Times, risks: Risks, now: float
    ) -> None:
        self.names = list(places)
        self._hazards, self._stall_s, self._now = risks.hazards, risks.stall_s, now
        self._load_s = np.array([choice.seconds for choice in places.values()])
        self._token_s = np.array([times.token_s(name, model) for name in self.names])
        self._prefill = prefill_lines(times, model, self.names)
        self._move = move_lines(times, model, self.names)

    def stay_s(self, who: Staying) -> Floats:
        """E of each request where it is."""
        return cost_s(
            self._survival(who.workers),
            np.zeros_like(who.context),
            who.context,
            who.remaining,
            who.token_s,
            self._recompute(who.workers, who),
        )

    def least_s(self, who: Staying) -> Floats:
        """No move can make the cost of a request less than this."""
        return np.asarray(who.remaining * np.minimum(who.token_s, self._token_s.min()))

    def best(self, who: Staying, num_places: int) -> list[WorkerId]:
        """The places that are best for a typical request of these."""
        same = np.ones(len(self.names))
        context, remaining = same * who.context.mean(), same * who.remaining.mean()
        start_s = self._load_s + self._prefill.at(context)
        recompute = self._recompute(self.names, who)
        costs = cost_s(self._survival(self.names), start_s, context, remaining, self._token_s, recompute)
        return [self.names[i] for i in np.argsort(costs, kind="stable")[:num_places]]

    def move_s(self, who: Staying, rule: Rule) -> Floats:
        """E of moving each request (rows) to each place (columns); infinite to where it is."""
        num_requests, num_places = len(who.requests), len(self.names)
        # All pairs in one row: each request's values as often as there are places, and these so often.
        sources = [worker for worker in who.workers for _ in self.names]
        targets = self.names * num_requests
        context, remaining, source_token_s = (
            np.repeat(one, num_places) for one in (who.context, who.remaining, who.token_s)
        )
        load_s, token_s = (np.tile(one, num_requests) for one in (self._load_s, self._token_s))
        there = self._recompute(targets, who)
        survival = self._survival(targets)
        if rule == "classic":
            start_s = load_s + self._prefill.tiled(num_requests).at(context)
            costs = cost_s(survival, start_s, context, remaining, token_s, there)
        else:
            source = Side(self._survival(sources), source_token_s, self._recompute(sources, who))
            window_s = load_s + self._move.tiled(num_requests).at(context)
            costs = window_cost_s(
                source, Side(survival, token_s, there), window_s, PAUSE_STEPS * token_s, context, remaining
            )
        is_there = np.array([one == other for one, other in zip(sources, targets, strict=True)])
        return np.where(is_there, np.inf, costs).reshape(num_requests, num_places)

    def is_safer(self, who: Staying) -> npt.NDArray[np.bool_]:
        """Whether each request (rows) would more likely be done without a loss at each place (columns)."""
        num_places, num_requests = len(self.names), len(who.requests)
        stays = self._survival(who.workers)((who.remaining * who.token_s)[:, None])
        window_s = (self._load_s + self._move.at(who.context[:, None])).ravel()
        leaves_s = window_s + (who.remaining[:, None] * self._token_s).ravel()
        sources = [worker for worker in who.workers for _ in self.names]
        until = self._survival(sources)(window_s[:, None]).reshape(num_requests, num_places)
        there = self._survival(self.names * num_requests)(leaves_s[:, None])
        return np.asarray(until * there.reshape(num_requests, num_places) > stays)

    def leaves_within(self, worker: WorkerId, seconds: float) -> float:
        """The probability."""
        return 1 - float(self._survival([worker])(np.array([[seconds]]))[0, 0])

    def _survival(self, workers: Sequence[WorkerId]) -> Callable[[Floats], Floats]:
        return lambda horizons_s: self._hazards.survival(workers, self._now, horizons_s)

    def _recompute(self, workers: Sequence[WorkerId], who: Staying) -> Recompute:
        context = float((who.context + who.remaining).mean())
        return recompute_elsewhere(self._prefill, self.names, workers, context, self._stall_s)
