"""When a request would be done on each of several workers, and what their leaving is expected to add."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from godwit.costs.hazard import Recompute, cost_s
from godwit.costs.survival import Floats
from godwit.scheduling.choices import Choice
from godwit.scheduling.view import ClusterView, Risks, Times
from godwit.types import ModelName, WorkerId

_FAR_TOKENS = 1000.0


class Lines(NamedTuple):
    """overhead_s + per_token_s · context, for each of some workers."""

    overhead_s: Floats
    per_token_s: Floats

    def at(self, context: Floats | float) -> Floats:
        """Seconds for so many tokens."""
        return np.asarray(self.overhead_s + self.per_token_s * context)

    def tiled(self, times: int) -> "Lines":
        """All of them so often, one time after the other."""
        return Lines(np.tile(self.overhead_s, times), np.tile(self.per_token_s, times))


def completion_costs_s(
    view: ClusterView, model: ModelName, choices: Sequence[Choice], risks: Risks | None
) -> Floats:
    """E = T + L of the view's request under each choice; without risks T alone.

    T: what happens before the start, the computing of its context, and the tokens that it is expected to
    draw.
    """
    ask, times = view.ask, view.times
    workers = [choice.worker for choice in choices]
    context = float(ask.context_tokens)
    remaining = times.remaining_tokens(model, ask.num_output, ask.expected_tokens, ask.max_tokens)
    prefill = prefill_lines(times, model, workers)
    start_s = np.array([choice.seconds for choice in choices]) + prefill.at(context)
    token_s = np.array([times.token_s(worker, model) for worker in workers])
    if risks is None:
        return np.asarray(start_s + remaining * token_s)
    same = np.ones(len(workers))
    return cost_s(
        lambda horizons_s: risks.hazards.survival(workers, view.now, horizons_s),
        start_s,
        context * same,
        remaining * same,
        token_s,
        recompute_elsewhere(prefill, workers, workers, context + remaining, risks.stall_s),
    )


def recompute_elsewhere(
    prefill: Lines,
    candidates: Sequence[WorkerId],
    workers: Sequence[WorkerId],
    context: float,
    stall_s: float,
) -> Recompute:
    """What the loss of each worker costs: the recompute on the best candidate but itself, for such a context.

    `prefill` has the candidates' lines. Where there is no other, its own: some day it may come back.
    """
    ranked = np.argsort(prefill.at(context), kind="stable")[:2].tolist()
    best = candidates[ranked[0]]
    index = [ranked[-1] if worker == best else ranked[0] for worker in workers]
    return Recompute(prefill.overhead_s[index], prefill.per_token_s[index], stall_s)


def prefill_lines(times: Times, model: ModelName, workers: Sequence[WorkerId]) -> Lines:
    """What it takes to compute a context on each worker."""
    return _lines(times.prefill_s, model, workers)


def move_lines(times: Times, model: ModelName, workers: Sequence[WorkerId]) -> Lines:
    """What it takes to move a request there, whichever way it goes."""
    return _lines(times.resume_s, model, workers)


def _lines(
    seconds: Callable[[WorkerId, ModelName, float], float], model: ModelName, workers: Sequence[WorkerId]
) -> Lines:
    overhead_s = np.array([seconds(worker, model, 0.0) for worker in workers])
    far_s = np.array([seconds(worker, model, _FAR_TOKENS) for worker in workers])
    return Lines(overhead_s, (far_s - overhead_s) / _FAR_TOKENS)
