"""Which way a request moves, from what is assumed, measured, and learnt from every move. Pure."""

import math
from collections.abc import Iterator

from msgspec import Struct

from godwit.costs.accuracy import ErrorSummary, PredictionErrors
from godwit.costs.crossover import ALL_METHODS, Method, MigrationCost, Plan, Server
from godwit.costs.fit import Line
from godwit.costs.known import Constants
from godwit.costs.kv import KvSize
from godwit.costs.learnt import Key, KvSizes, Learning, PooledLines, Recent, Untaught
from godwit.costs.report import CostsReport, PairReport, ServerReport, line_known, size_known
from godwit.costs.shipping import move_cost
from godwit.types import Phases

AUTO = "auto"
METHODS = (AUTO, *Method)
"""What may be asked for."""

PHASES = ("transfer", "compute", "ready")
"""Parts of a move that are predicted: shipping KV, computing the rest, and both at once."""

MAX_KEPT = 512
"""Pairs, workers' models, and models, of each, that are kept beside what was known before."""

BUSY_SHARE = 0.75
"""A side of a split that was busy for this much of it did not wait for the other."""

_POOL = "all pairs"
_MIN_S, _MAX_S = 1e-6, 1e6


class Observation(Struct, frozen=True):
    """A move that went as it was planned: the counts are those of `godwit.protocol.entry.MoveRecord`.

    `both_loaded`: both ends served other requests as well.
    """

    model: str
    source: str
    destination: str
    actual: Phases
    predicted: Phases | None = None
    computed_tokens: int = 0
    kv_tokens: int = 0
    kv_bytes: int = 0
    both_loaded: bool = False

    @property
    def transfer_s(self) -> float | None:
        """Seconds until the move was ready, where shipping was what took them; None where it was not."""
        return self._busy_s(self.kv_bytes, self.computed_tokens, self.actual.transfer_s)

    @property
    def recompute_s(self) -> float | None:
        """Seconds until the move was ready, where computing was what took them; None where it was not."""
        return self._busy_s(self.computed_tokens, self.kv_bytes, self.actual.compute_s)

    def _busy_s(self, done: int, done_by_other: int, seconds: float | None) -> float | None:
        """All of the move has the overheads in it; of two sides only one that did not wait tells its rate."""
        ready_s = self.actual.ready_s
        if done <= 0 or ready_s is None:
            return None
        has_waited = done_by_other > 0 and (seconds is None or seconds < BUSY_SHARE * ready_s)
        return None if has_waited else ready_s

    def errors(self) -> Iterator[tuple[str, float, float]]:
        """Phase, predicted and actual seconds, of the phases that were predicted and happened."""
        if (predicted := self.predicted) is None:
            return
        pairs = (
            ("transfer", predicted.transfer_s, self.transfer_s),
            ("compute", predicted.compute_s, self.recompute_s),
            ("ready", predicted.ready_s, self.actual.ready_s),
        )
        for phase, predicted_s, actual_s in pairs:
            if predicted_s is not None and actual_s is not None and 0 <= actual_s <= _MAX_S:
                yield phase, predicted_s, actual_s


class MoveTerms(Struct, frozen=True):
    """What the cost model takes for moves of one model from one worker to another."""

    cost: MigrationCost
    source: Server
    destination: Server


class MoveCosts:
    """Chooses each move's way, and learns from each move that is over. Not thread-safe.

    `known` is what it starts from. At most `max_kept` pairs of workers are learnt, as many models on workers,
    and as many models.
    """

    def __init__(self, known: Constants | None = None, max_kept: int = MAX_KEPT) -> None:
        self._known = known = Constants() if known is None else known
        self._transfers = PooledLines(self._given_transfer, lambda _: known.pair.line, max_kept)
        self._recomputes = PooledLines(
            self._given_recompute, lambda model: known.of_model(model).line, max_kept
        )
        self._sizes: Recent[str, KvSizes] = Recent(max_kept)
        self._errors = {phase: PredictionErrors() for phase in PHASES}

    def choose(
        self,
        method: str,
        model: str,
        context_tokens: int,
        source: str,
        destination: str,
        *,
        both_loaded: bool = False,
    ) -> Plan:
        """The cheapest way for a context, or the one that is asked for; ValueError where it is none.

        `both_loaded`: both ends serve other requests too, so that rates which were measured so count.
        """
        methods = ALL_METHODS if method == AUTO else (Method(method),)
        terms = self.terms(model, source, destination, both_loaded=both_loaded)
        return terms.cost.planned(context_tokens, terms.source, terms.destination, methods)

    def terms(self, model: str, source: str, destination: str, *, both_loaded: bool = False) -> MoveTerms:
        """What `choose` gives to the cost model."""
        transfer = self._transfers.line(_POOL, (source, destination))
        recompute = self._recomputes.line(model, (destination, model))
        link_share, prefill_share = self._shares(model, source, destination) if both_loaded else (1.0, 1.0)
        sizes = self._sizes.get(model)
        server = Server(
            prefill_share / recompute.slope, link_share / transfer.slope, self._kv(destination, model, sizes)
        )
        cost = move_cost(transfer.intercept, recompute.intercept)
        return MoveTerms(cost, server, server)

    def learn(self, seen: Observation) -> None:
        """Take what a move took; counts or seconds that no move can have teach nothing."""
        for phase, predicted_s, actual_s in seen.errors():
            self._errors[phase].record(predicted_s, actual_s)
        # A move between loaded workers is one of a longer context between free ones: so both teach one line.
        shares = self._shares(seen.model, seen.source, seen.destination) if seen.both_loaded else (1.0, 1.0)
        link_share, prefill_share = shares
        if (seconds := _possible(seen.recompute_s)) is not None:
            key = (seen.destination, seen.model)
            self._recomputes.learn(seen.model, key, seen.computed_tokens / prefill_share, seconds)
        if (seconds := _possible(seen.transfer_s)) is not None:
            key = (seen.source, seen.destination)
            self._transfers.learn(_POOL, key, seen.kv_bytes / link_share, seconds)
        # Where the destination computed too, some of what arrived was not taken.
        if seen.kv_bytes > 0 and seen.kv_tokens > 0 and seen.computed_tokens == 0:
            self._sizes.setdefault(seen.model, KvSizes).learn(seen.kv_tokens, seen.kv_bytes)

    def errors(self) -> dict[str, ErrorSummary]:
        """How far predictions were from what happened, by phase; only phases that have happened."""
        summaries = {phase: errors.summary() for phase, errors in self._errors.items()}
        return {phase: summary for phase, summary in summaries.items() if summary is not None}

    def bias_s(self, phase: str) -> float:
        """The median of actual - predicted seconds of a phase; not a number before the first."""
        summary = self._errors[phase].summary()
        return math.nan if summary is None else summary.bias_s

    def report(self) -> CostsReport:
        """Everything as it stands, for people; it changes nothing.

        First the whole cluster, then what is known or was learnt of single pairs and workers, in order.
        """
        known = self._known
        pairs = sorted({*known.pairs, *self._transfers.keys})
        models = sorted({*known.models, *self._recomputes.pools, *self._sizes})
        workers = sorted({*known.workers, *self._recomputes.keys})
        return CostsReport(
            (self._pair_report(None), *map(self._pair_report, pairs)),
            (
                *(self._server_report(None, model) for model in (None, *models)),
                *(self._server_report(worker, model) for worker, model in workers),
            ),
            self.errors(),
        )

    def _given_transfer(self, key: Key) -> Line | None:
        pair = self._known.pairs.get(key)
        return None if pair is None else pair.line

    def _given_recompute(self, key: Key) -> Line | None:
        server = self._known.workers.get(key)
        return None if server is None else server.line

    def _shares(self, model: str, source: str, destination: str) -> tuple[float, float]:
        """What load leaves of the link's rate and of the destination's prefill rate."""
        known = self._known
        pair, server = known.of_pair(source, destination), known.of_worker(destination, model)
        return pair.loaded_share, server.loaded_share

    def _kv(self, worker: str, model: str, sizes: KvSizes | None) -> KvSize:
        server = self._known.of_worker(worker, model)
        return server.kv if sizes is None or server.is_kv_measured else sizes.kv

    def _pair_report(self, key: Key | None) -> PairReport:
        if key is None:
            source, destination = None, None
            constants, learnt = self._known.pair, self._transfers.of_pool(_POOL)
        else:
            source, destination = key
            constants, learnt = self._known.of_pair(*key), self._transfers.of_key(_POOL, key)
        overhead, bandwidth = line_known(
            learnt, constants.transfer_overhead_s, constants.bandwidth_bytes_per_s
        )
        return PairReport(source, destination, overhead, bandwidth, constants.loaded_share)

    def _server_report(self, worker: str | None, model: str | None) -> ServerReport:
        learnt: Learning
        if model is None:
            constants, learnt, sizes = self._known.server, Untaught(self._known.server.line), None
        elif worker is None:
            constants, learnt = self._known.of_model(model), self._recomputes.of_pool(model)
            sizes = self._sizes.peek(model)
        else:
            constants = self._known.of_worker(worker, model)
            learnt = self._recomputes.of_key(model, (worker, model))
            sizes = self._sizes.peek(model)
        overhead, prefill = line_known(learnt, constants.recompute_overhead_s, constants.prefill_tps)
        return ServerReport(
            worker, model, overhead, prefill, size_known(sizes, constants), constants.loaded_share
        )


def _possible(seconds: float | None) -> float | None:
    """Seconds that a part of a move can take, else None."""
    return seconds if seconds is not None and math.isfinite(seconds) and _MIN_S <= seconds <= _MAX_S else None
