"""How long a model's start on a worker takes, by the formulas of ServerlessLLM (Fu et al., OSDI 2024). Pure.

Loading takes q + n/b: q seconds of earlier loads in the same queue, n bytes of checkpoint, b bytes/s of the
slowest tier on the way. A move takes a·(t_in + t_out) + b with t_out = d/t: t_in and t_out are prompt and
output tokens, d is how long the request has been decoding, t the mean seconds a token, so that nobody is
polled for t_out. A request that starts waits a line of its own for its first token. Each b of a tier, each
line (a, b) and each t is refitted from what really happened; so is how long outputs are (`costs.lengths`).
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from godwit.costs.accuracy import ErrorSummary, PredictionErrors
from godwit.costs.fit import Line
from godwit.costs.known import Constants
from godwit.costs.learnt import Key, PooledConstants, PooledLines
from godwit.costs.lengths import OutputLengths
from godwit.types import LoadRecord, ModelInfo, ModelName, Tier, WorkerId

ASSUMED_BYTES_PER_S: Mapping[str, float] = {Tier.DRAM: 10e9, Tier.SSD: 1.5e9, Tier.REMOTE: 100e6}
"""Bandwidths out of each tier but the device; each is that of the whole way."""

ASSUMED_TOKEN_S = 0.05

MAX_KEPT = 8192
"""Workers' tiers, and workers' models, of which times are kept."""

LOAD, RESUME = "load", "resume"
"""What is predicted."""

_MIN_S, _MAX_S = 1e-6, 1e6

Provenance = Literal["assumed", "learnt"]


class LoadEstimate(Struct, frozen=True):
    """Loads from one tier of one worker; `worker` None: of one whose loads nobody has seen.

    The latest `n` loads taught it: the worker's own, or all workers' where it has none.
    """

    worker: str | None
    tier: Tier
    bandwidth_bytes_per_s: float
    n: int
    provenance: Provenance


class ResumeEstimate(Struct, frozen=True):
    """Moves of one model to one worker, and its decoding there; `worker` None: one that nobody has seen.

    The latest `n` moves taught `overhead_s` (b) and `per_token_s` (a), `token_n` requests taught `token_s`:
    the worker's own, or all workers' where it has none.
    """

    worker: str | None
    model: str
    overhead_s: float
    per_token_s: float
    n: int
    provenance: Provenance
    token_s: float
    token_n: int


class EstimatesReport(Struct, frozen=True):
    """All estimates, and how far predictions were from what happened, by "load" and "resume"."""

    loads: tuple[LoadEstimate, ...]
    resumes: tuple[ResumeEstimate, ...]
    errors: dict[str, ErrorSummary]


class StartupTimes:
    """Implements `scheduling.view.Times`, and learns from each load, move and request. Not thread-safe.

    A worker's tier or model that nobody has seen takes the mean of all workers', and these begin from `known`
    (for moves: what is known of a recompute) or from what is assumed. At most `max_kept` of each are kept;
    what was longest not asked for goes first. `on_error` hears of each prediction by how many seconds it was
    off: what was predicted, LOAD or RESUME, and the absolute error.
    """

    def __init__(
        self,
        known: Constants | None = None,
        max_kept: int = MAX_KEPT,
        on_error: Callable[[str, float], None] = lambda _what, _seconds: None,
    ) -> None:
        self._on_error = on_error
        self._known = Constants() if known is None else known
        self._seconds_per_byte = PooledConstants(lambda tier: 1 / ASSUMED_BYTES_PER_S[tier], max_kept)
        self._resumes = PooledLines(
            self._given_resume, lambda model: self._known.of_model(model).line, max_kept
        )
        self._prefills = PooledLines(
            self._given_resume, lambda model: self._known.of_model(model).line, max_kept
        )
        self._lengths = OutputLengths()
        self._emulated: dict[Key, float] = {}
        self._tokens = PooledConstants(self._assumed_token_s, max_kept, self._given_token_s)
        self._errors = {LOAD: PredictionErrors(), RESUME: PredictionErrors()}

    def load_s(self, worker: WorkerId, info: ModelInfo) -> float:
        """Seconds from the load's turn until `info` is on the device; 0 where it is."""
        if info.is_loaded or info.tier is Tier.DEVICE:
            return 0.0
        key = (worker, info.tier)
        learnt = self._seconds_per_byte.value(info.tier, key)
        return info.checkpoint_bytes * max(learnt, self._emulated.get(key, 0.0))

    def emulates(self, worker: WorkerId, bytes_per_s: Mapping[Tier, float]) -> None:
        """A worker's loads out of these tiers are slowed on purpose: the first is no guess then.

        What comes from far passes the nearer tiers too.
        """
        passed = 0.0
        for tier in (Tier.DRAM, Tier.SSD, Tier.REMOTE):
            passed += 1 / bytes_per_s[tier] if tier in bytes_per_s else 0.0
            self._emulated.pop((worker, tier), None)
            if passed > 0:
                self._emulated[worker, tier] = passed

    def resume_s(self, worker: WorkerId, model: ModelName, context_tokens: float) -> float:
        """Seconds from a move's start until `worker` has the KV of so many tokens, whichever way it goes."""
        line = self._resumes.line(model, (worker, model))
        return line.intercept + line.slope * context_tokens

    def prefill_s(self, worker: WorkerId, model: ModelName, context_tokens: float) -> float:
        """Seconds from a request's start on `worker`, with so many tokens, until its first new one."""
        line = self._prefills.line(model, (worker, model))
        return line.intercept + line.slope * context_tokens

    def remaining_tokens(
        self, model: ModelName, num_output: float, expected_tokens: int | None, max_tokens: int | None
    ) -> float:
        """Output tokens still to come: by the client's guess, else by what the model drew lately."""
        return self._lengths.remaining(model, num_output, expected_tokens, max_tokens)

    def token_s(self, worker: WorkerId, model: ModelName) -> float:
        """Mean seconds per output token."""
        return self._tokens.value(model, (worker, model))

    def learn_load(
        self,
        worker: WorkerId,
        record: LoadRecord,
        predicted_queue_s: float | None = None,
        predicted_load_s: float | None = None,
    ) -> None:
        """Take what a load took, and what was predicted, if it was.

        A load of nothing, from the device, or in no time teaches nothing.
        """
        if record.tier is Tier.DEVICE or record.num_bytes <= 0 or not _is_possible(record.seconds):
            return
        self._seconds_per_byte.learn(record.tier, (worker, record.tier), record.seconds / record.num_bytes)
        if predicted_queue_s is not None and predicted_load_s is not None:
            self._record(LOAD, predicted_queue_s + predicted_load_s, record.queue_s + record.seconds)

    def learn_resume(
        self,
        worker: WorkerId,
        model: ModelName,
        context_tokens: int,
        predicted_s: float | None,
        actual_s: float,
    ) -> None:
        """A move of so many tokens to `worker` took `actual_s` until it could decode."""
        if context_tokens <= 0 or not _is_possible(actual_s):
            return
        self._resumes.learn(model, (worker, model), context_tokens, actual_s)
        if predicted_s is not None:
            self._record(RESUME, predicted_s, actual_s)

    def learn_prefill(self, worker: WorkerId, model: ModelName, context_tokens: int, actual_s: float) -> None:
        """A request of so many tokens that started on `worker` had its next one after `actual_s`."""
        if context_tokens > 0 and _is_possible(actual_s):
            self._prefills.learn(model, (worker, model), context_tokens, actual_s)

    def learn_output(self, model: ModelName, num_output: int, expected_tokens: int | None) -> None:
        """A request came to its own end after so many tokens; its client had guessed `expected_tokens`."""
        self._lengths.learn(model, num_output, expected_tokens)

    def learn_tokens(self, worker: WorkerId, model: ModelName, num_tokens: int, seconds: float) -> None:
        """A request drew `num_tokens` in so many seconds of decoding."""
        if num_tokens > 0 and _is_possible(seconds):
            self._tokens.learn(model, (worker, model), seconds / num_tokens)

    def report(self) -> EstimatesReport:
        """Everything as it stands, for people: first of any other worker, then of those seen, in order."""
        tiers = [Tier.DRAM, Tier.SSD, Tier.REMOTE]
        models = sorted({*self._known.models, *self._resumes.pools, *self._tokens.pools})
        seen = sorted({*self._known.workers, *self._resumes.keys, *self._tokens.keys})
        return EstimatesReport(
            (
                *(self._load_estimate(None, tier) for tier in tiers),
                *(self._load_estimate(worker, Tier(tier)) for worker, tier in self._seconds_per_byte.keys),
            ),
            (
                *(self._resume_estimate(None, model) for model in models),
                *(self._resume_estimate(worker, model) for worker, model in seen),
            ),
            self.errors(),
        )

    def errors(self) -> dict[str, ErrorSummary]:
        """How far predictions were from what happened; only of what has happened."""
        summaries = {what: errors.summary() for what, errors in self._errors.items()}
        return {what: summary for what, summary in summaries.items() if summary is not None}

    def _given_resume(self, key: Key) -> Line | None:
        server = self._known.workers.get(key)
        return None if server is None else server.line

    def _given_token_s(self, key: Key) -> float | None:
        server = self._known.workers.get(key)
        return None if server is None or server.token_s is None else server.token_s.value

    def _assumed_token_s(self, model: str) -> float:
        token_s = self._known.of_model(model).token_s
        return ASSUMED_TOKEN_S if token_s is None else token_s.value

    def _record(self, what: str, predicted_s: float, actual_s: float) -> None:
        if math.isfinite(predicted_s) and 0 <= actual_s <= _MAX_S:
            self._errors[what].record(predicted_s, actual_s)
            self._on_error(what, abs(actual_s - predicted_s))

    def _load_estimate(self, worker: str | None, tier: Tier) -> LoadEstimate:
        constants = self._seconds_per_byte
        learnt = constants.of_pool(tier) if worker is None else constants.of_key(tier, (worker, tier))
        return LoadEstimate(worker, tier, 1 / learnt.value, learnt.n, _provenance(learnt.n))

    def _resume_estimate(self, worker: str | None, model: str) -> ResumeEstimate:
        if worker is None:
            learnt, tokens = self._resumes.of_pool(model), self._tokens.of_pool(model)
        else:
            learnt = self._resumes.of_key(model, (worker, model))
            tokens = self._tokens.of_key(model, (worker, model))
        line = learnt.line
        return ResumeEstimate(
            worker,
            model,
            line.intercept,
            line.slope,
            learnt.n,
            _provenance(learnt.n),
            tokens.value,
            tokens.n,
        )


def _is_possible(seconds: float) -> bool:
    return math.isfinite(seconds) and _MIN_S <= seconds <= _MAX_S


def _provenance(n: int) -> Provenance:
    return "learnt" if n else "assumed"
