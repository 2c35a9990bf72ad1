"""What it costs that a server may leave while it serves a request, and what it costs to move it first. Pure.

    E = T + L
    L = ∫ f(t|a)·U(t) dt over [0, T]
    U(t) = stall + recompute, on the best other server, of the context that is held at t

f is the density of the server's remaining stay at its age a. The integral is a sum over 16 cells, each with
the exact probability S(t_k|a) - S(t_(k+1)|a) and U at its middle. All arguments are arrays of one shape (n),
or numbers; `Survival` takes times (n, k) and gives S(t|a) in the same shape.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from godwit.costs.survival import Floats

NUM_CELLS = 16
_EDGES = np.linspace(0.0, 1.0, NUM_CELLS + 1)
_MIDDLES = (_EDGES[1:] + _EDGES[:-1]) / 2

Survival = Callable[[Floats], Floats]


class Recompute(Struct, frozen=True):
    """What a loss costs: overhead_s + per_token_s · context, to compute it on the best other server, and the
    stall until somebody begins to."""

    overhead_s: Floats
    per_token_s: Floats
    stall_s: float


def expected_loss_s(
    survival: Survival,
    from_s: Floats,
    for_s: Floats,
    context: Floats,
    silent_s: Floats,
    token_s: Floats,
    recompute: Recompute,
) -> Floats:
    """L over the time from `from_s` on for `for_s`.

    At its start the request has `context` tokens. For `silent_s` it draws none (it is loaded, computed), then
    one each `token_s`.
    """
    chance = survival(from_s[:, None] + for_s[:, None] * _EDGES)
    drawing_s = np.maximum(for_s[:, None] * _MIDDLES - silent_s[:, None], 0.0)
    held = context[:, None] + drawing_s / token_s[:, None]
    loss_s = recompute.stall_s + recompute.overhead_s[:, None] + recompute.per_token_s[:, None] * held
    return np.asarray(((chance[:, :-1] - chance[:, 1:]) * loss_s).sum(axis=1))


def cost_s(
    survival: Survival,
    start_s: Floats,
    context: Floats,
    remaining: Floats,
    token_s: Floats,
    recompute: Recompute,
) -> Floats:
    """E on a server where the request draws after `start_s` and then has `remaining` tokens to draw.

    With `start_s` 0 this is E of staying. With the time of a full prefill there, as if the request stopped
    for it, it is what the older (*classic*) rule holds a move to cost.
    """
    time_s = start_s + remaining * token_s
    return time_s + expected_loss_s(
        survival, np.zeros_like(time_s), time_s, context, start_s, token_s, recompute
    )


class Side(Struct, frozen=True):
    """One end of a move: its survival from now on, seconds a token, and what its loss costs."""

    survival: Survival
    token_s: Floats
    recompute: Recompute


def window_cost_s(
    source: Side, destination: Side, window_s: Floats, pause_s: Floats, context: Floats, remaining: Floats
) -> Floats:
    """E of a live move that takes `window_s` (W), in which the source goes on, then pauses for `pause_s` (δ).

    E_move = [W + δ + rest·d_j] + [loss on i during W] + S_i(W|a_i)·[loss on j after W]. A request that would
    end within W has nothing to gain: infinite.
    """
    drawn = window_s / source.token_s
    rest = remaining - drawn
    at_source = expected_loss_s(
        source.survival,
        np.zeros_like(window_s),
        window_s,
        context,
        np.zeros_like(window_s),
        source.token_s,
        source.recompute,
    )
    after_s = pause_s + np.maximum(rest, 0.0) * destination.token_s
    at_destination = expected_loss_s(
        destination.survival,
        window_s,
        after_s,
        context + drawn,
        pause_s,
        destination.token_s,
        destination.recompute,
    )
    still_there = source.survival(window_s[:, None])[:, 0]
    total = window_s + after_s + at_source + still_there * at_destination
    return np.where(rest > 0, total, np.inf)
