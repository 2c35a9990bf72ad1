"""What `godwit bench crossover` measures, in which order, and about how long the rest will take. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec import Struct

from godwit.costs.choice import AUTO
from godwit.costs.crossover import Method, MigrationCost, Server
from godwit.costs.kv import KvSize

CALIBRATION_REPEAT = 2
MIN_CONTEXT_TOKENS = 16
METHODS = (Method.KV.value, Method.TOKENS.value, Method.SPLIT.value, AUTO)
START_S = 10.0
# The built-in model on a slow core: for the estimate of what is left only.
_PREFILL_TPS, _KV_BYTES_PER_TOKEN, _UNSHAPED_MBIT = 150.0, 23_040, 4000.0
_COST = MigrationCost(0.2, 0.2)


class MeasuredMove(Struct, frozen=True):
    """One move to be measured."""

    context_tokens: int
    method: str
    live: bool


def calibration_contexts(contexts: Sequence[int]) -> list[int]:
    """At least three context lengths between the measured ones and below them, and none of these."""
    ordered = sorted(set(contexts))
    between = [round(math.sqrt(shorter * longer)) for shorter, longer in pairwise(ordered)]
    chosen = {max(MIN_CONTEXT_TOKENS, ordered[0] // 2), *between} - set(ordered)
    for share in (0.75, 0.6, 0.9, 1.1):
        if len(chosen) < 3:
            chosen |= {round(share * ordered[-1])} - set(ordered)
    return sorted(chosen)


def calibration_moves(contexts: Sequence[int]) -> list[MeasuredMove]:
    """All by stopped sources, each context by both methods in turn."""
    return [
        MeasuredMove(context, method, False)
        for context in calibration_contexts(contexts)
        for _ in range(CALIBRATION_REPEAT)
        for method in (Method.KV.value, Method.TOKENS.value)
    ]


def cell_moves(context_tokens: int, repeat: int, live_repeat: int) -> list[MeasuredMove]:
    """The stopped ones first, for those leave the context as it is; the order of methods rotates."""

    def turns(number: int, live: bool) -> Iterator[MeasuredMove]:
        for turn in range(number):
            shift = turn % len(METHODS)
            for method in (*METHODS[shift:], *METHODS[:shift]):
                yield MeasuredMove(context_tokens, method, live)

    return [*turns(repeat, False), *turns(live_repeat, True)]


def nominal_s(move: MeasuredMove, mbit: float | None) -> float:
    """About how long a move takes, a live one with the request that is made for it."""
    bytes_per_s = (mbit or _UNSHAPED_MBIT) * 1e6 / 8
    server = Server(_PREFILL_TPS, bytes_per_s, KvSize.linear(_KV_BYTES_PER_TOKEN))
    methods = tuple(Method) if move.method == AUTO else (Method(move.method),)
    seconds = _COST.planned(move.context_tokens, server, server, methods).seconds
    return seconds + move.context_tokens / _PREFILL_TPS if move.live else seconds


def nominal_link_s(contexts: Sequence[int], repeat: int, live_repeat: int, mbit: float | None) -> float:
    """About how long all of a link takes: two starts, a request for each context, calibration, cells."""
    cells = [move for context in contexts for move in cell_moves(context, repeat, live_repeat)]
    moves_s = sum(nominal_s(move, mbit) for move in (*calibration_moves(contexts), *cells))
    prefills_s = sum((*contexts, *calibration_contexts(contexts))) / _PREFILL_TPS
    return 2 * START_S + prefills_s + moves_s


@dataclass(slots=True)
class Countdown:
    """Scales what is left by how long the part that is done has really taken."""

    total_s: float
    started_s: float
    done_s: float = 0.0

    def done(self, nominal_s: float) -> None:
        """A part of about this length is over."""
        self.done_s += nominal_s

    def left(self, now: float) -> str:
        """What is left, in words."""
        passed_s = now - self.started_s
        # At its beginning a start that took long would say much too much.
        pace = (passed_s + START_S) / (self.done_s + START_S)
        left_s = max(self.total_s - self.done_s, 0.0) * pace
        return f"about {left_s / 60:.0f} min left" if left_s >= 90 else f"about {left_s:.0f} s left"
