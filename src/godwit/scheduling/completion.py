"""When a request would be done on each of several workers, and what their leaving is expected to add."""

from collections.abc import Sequence

import numpy as np

from godwit.costs.hazard import Recompute, cost_s
from godwit.costs.survival import Floats
from godwit.scheduling.choices import Choice
from godwit.scheduling.view import ClusterView, Risks, Times
from godwit.types import ModelName, WorkerId

_FAR_TOKENS = 1000.0


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
    start_s = np.array([one.seconds + times.prefill_s(one.worker, model, context) for one in choices])
    token_s = np.array([times.token_s(worker, model) for worker in workers])
    if risks is None:
        return np.asarray(start_s + remaining * token_s)
    same = np.ones(len(workers))
    elsewhere = recompute_elsewhere(times, model, workers, workers, context + remaining, risks.stall_s)
    return cost_s(
        lambda horizons_s: risks.hazards.survival(workers, view.now, horizons_s),
        start_s,
        context * same,
        remaining * same,
        token_s,
        elsewhere,
    )


def recompute_elsewhere(
    times: Times,
    model: ModelName,
    candidates: Sequence[WorkerId],
    workers: Sequence[WorkerId],
    context: float,
    stall_s: float,
) -> Recompute:
    """What the loss of each worker costs: the recompute on the best candidate but itself, for such a context.

    Where there is no other, its own: some day it may come back.
    """
    overhead_s, per_token_s = prefill_lines(times, model, candidates)
    ranked = np.argsort(overhead_s + context * per_token_s, kind="stable").tolist()
    best, second = candidates[ranked[0]], ranked[min(1, len(ranked) - 1)]
    index = [second if worker == best else ranked[0] for worker in workers]
    return Recompute(overhead_s[index], per_token_s[index], stall_s)


def prefill_lines(times: Times, model: ModelName, workers: Sequence[WorkerId]) -> tuple[Floats, Floats]:
    """(overhead_s, per_token_s) of computing a context, for each worker."""
    overhead_s = np.array([times.prefill_s(worker, model, 0.0) for worker in workers])
    far_s = np.array([times.prefill_s(worker, model, _FAR_TOKENS) for worker in workers])
    return overhead_s, (far_s - overhead_s) / _FAR_TOKENS


def move_lines(times: Times, model: ModelName, workers: Sequence[WorkerId]) -> tuple[Floats, Floats]:
    """The same of moving a request there, whichever way it goes."""
    overhead_s = np.array([times.resume_s(worker, model, 0.0) for worker in workers])
    far_s = np.array([times.resume_s(worker, model, _FAR_TOKENS) for worker in workers])
    return overhead_s, (far_s - overhead_s) / _FAR_TOKENS
