"""From measurements to a profile. Pure: what it makes of them can be tested with made-up ones."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from godwit.calibrate.measured import DecodeSample, Measurements, MoveSample, PrefillSample
from godwit.calibrate.sizes import KvSizes, kv_sizes
from godwit.costs.constants import Constant, Measurement
from godwit.costs.fit import mean_of
from godwit.costs.known import ASSUMED_KV_BYTES_PER_TOKEN
from godwit.costs.lines import Points, RateLine, inverted, rate_line
from godwit.profile import BatchRates, ModelProfile, PairProfile, Profile

GOOD_POINTS = 8
"""From so many points on, the fits' intervals hold what they promise (docs/costs.md)."""


class Built(Struct, frozen=True):
    """The profile, the measured KV sizes (tokens, bytes) by model, and what is wrong with it."""

    profile: Profile
    kv_points: dict[str, tuple[tuple[float, float], ...]]
    warnings: tuple[str, ...]


def build_profile(found: Measurements, hardware: str, date: str) -> Built:
    """Constants of the whole cluster, and of each worker and each pair by itself."""
    return _Builder(found, hardware, date).build()


class _Builder:
    def __init__(self, found: Measurements, hardware: str, date: str) -> None:
        self._found = found
        self._hardware, self._date = hardware, date
        self._on = f"{hardware}, {date}"
        self._few: list[str] = []
        self._bounds: list[str] = []
        self._missing: list[str] = []

    def build(self) -> Built:
        sizes = self._sizes()
        models = {m: p for m in self._found.models if (p := self._model(m, None, sizes.get(m))) is not None}
        workers = {w: self._on_worker(w, models, sizes) for w in self._found.workers}
        transfer = self._line("transfer, all pairs", self._transfers(is_loaded=False))
        default = Profile()
        profile = Profile(
            hardware=self._hardware,
            date=self._date,
            transfer_overhead_s=default.transfer_overhead_s if transfer is None else transfer.overhead_s,
            recompute_overhead_s=_hull([m.recompute_overhead_s for m in models.values()])
            or default.recompute_overhead_s,
            bandwidth_bytes_per_s=None if transfer is None else transfer.rate,
            models=models,
            workers={worker: own for worker, own in workers.items() if own},
            pairs=self._pairs(),
        )
        points = {model: size.points for model, size in sizes.items()}
        return Built(profile, points, (*self._found.warnings, *self._missing, *self._summary()))

    def _moves(self, is_wanted: Callable[[MoveSample], bool]) -> Iterable[MoveSample]:
        return (sample for sample in self._found.moves if is_wanted(sample))

    # --- lines ----------------------------------------------------------------------------------------------

    def _line(self, what: str, points: Points, *, is_optional: bool = False) -> RateLine | None:
        """The line through the points; where there is none, a warning unless it `is_optional`."""
        try:
            line = rate_line(points, self._on)
        except ValueError as error:
            if not is_optional:
                self._missing.append(f"{what}: not measured, what is assumed stays ({error})")
            return None
        if len(points) < GOOD_POINTS:
            self._few.append(what)
        if line.is_bound:
            self._bounds.append(what)
        return line

    def _summary(self) -> list[str]:
        lines = []
        if self._few:
            lines.append(
                f"fewer than {GOOD_POINTS} points, intervals may be too narrow: {'; '.join(self._few)}"
            )
        if self._bounds:
            lines.append(
                "only a lower bound of the rate, as times do not surely grow with the size (longer "
                f"--contexts or a higher --repeat may tell): {'; '.join(self._bounds)}"
            )
        return lines

    def _transfers(
        self, *, is_loaded: bool, source: str | None = None, destination: str | None = None
    ) -> list[tuple[float, float]]:
        def is_wanted(s: MoveSample) -> bool:
            return (
                s.is_loaded == is_loaded
                and source in (None, s.source)
                and destination in (None, s.destination)
            )

        return [point for sample in self._moves(is_wanted) if (point := sample.shipped) is not None]

    def _recomputes(self, model: str, worker: str | None, *, is_loaded: bool) -> list[tuple[float, float]]:
        def is_wanted(s: MoveSample) -> bool:
            return s.model == model and s.is_loaded == is_loaded and worker in (None, s.destination)

        return [point for sample in self._moves(is_wanted) if (point := sample.computed) is not None]

    # --- parts of the profile -------------------------------------------------------------------------------

    def _sizes(self) -> dict[str, KvSizes]:
        sizes = {}
        for model in sorted({s.model for s in self._found.moves}):
            shipped = [
                (s.kv_tokens, s.kv_bytes) for s in self._found.moves if s.model == model and s.kv_bytes
            ]
            try:
                sizes[model] = kv_sizes(shipped, self._on)
            except ValueError as error:
                self._missing.append(f"KV size of {model}: not measured, what is assumed stays ({error})")
        return sizes

    def _on_worker(
        self, worker: str, models: dict[str, ModelProfile], sizes: dict[str, KvSizes]
    ) -> dict[str, ModelProfile]:
        own = {model: self._model(model, worker, sizes.get(model)) for model in models}
        return {model: profile for model, profile in own.items() if profile is not None}

    def _model(self, model: str, worker: str | None, sizes: KvSizes | None) -> ModelProfile | None:
        """A model on one worker, or (None) on all of them; None where not even its prefill rate is known."""
        where = "all workers" if worker is None else worker
        points = self._recomputes(model, worker, is_loaded=False)
        line = self._line(f"recompute of {model}, {where}", points, is_optional=True)
        prefill = None if line is None else line.rate
        if line is None:
            prompts = self._prompts(model, worker)
            alone = self._line(
                f"prefill of {model}, {where}, from prompts", prompts, is_optional=worker is not None
            )
            prefill = None if alone is None else alone.rate
        if prefill is None:
            return None
        loaded = self._line(
            f"recompute of {model}, {where}, under load",
            self._recomputes(model, worker, is_loaded=True),
            is_optional=True,
        )
        at_source, at_destination = self._slowdowns(model, worker)
        return ModelProfile(
            prefill_tps=prefill,
            recompute_overhead_s=None if line is None else line.overhead_s,
            prefill_loaded_tps=None if loaded is None else loaded.rate,
            kv_bytes_per_token=ASSUMED_KV_BYTES_PER_TOKEN if sizes is None else sizes.bytes_per_token,
            kv_points=() if sizes is None or sizes.is_linear else sizes.points,
            batches=self._batches(model, worker),
            source_slowdown=at_source,
            destination_slowdown=at_destination,
        )

    def _prompts(self, model: str, worker: str | None) -> list[tuple[float, float]]:
        return [
            (float(s.prompt_tokens), s.first_token_s)
            for s in self._found.prompts
            if s.model == model and worker in (None, s.worker)
        ]

    def _slowdowns(self, model: str, worker: str | None) -> tuple[Constant | None, Constant | None]:
        """At a source, idle otherwise, and at a destination that serves another request."""
        moves = [s for s in self._found.moves if s.model == model]
        at_source = [
            s.source_ratio
            for s in moves
            if s.source_ratio is not None and not s.is_loaded and worker in (None, s.source)
        ]
        at_destination = [
            s.destination_ratio
            for s in moves
            if s.destination_ratio is not None and worker in (None, s.destination)
        ]
        return self._mean(at_source), self._mean(at_destination)

    def _mean(self, values: Sequence[float]) -> Constant | None:
        return None if len(values) < 2 else mean_of(values).measured(self._on)

    def _batches(self, model: str, worker: str | None) -> tuple[BatchRates, ...]:
        found = self._found
        decodes: dict[int, list[DecodeSample]] = defaultdict(list)
        prefills: dict[int, list[PrefillSample]] = defaultdict(list)
        for decode in found.decodes:
            if decode.model == model and worker in (None, decode.worker):
                decodes[decode.batch].append(decode)
        for prefill in found.prefills:
            if prefill.model == model and worker in (None, prefill.worker):
                prefills[prefill.batch].append(prefill)
        rates = []
        for batch, samples in sorted(decodes.items()):
            steps = [step for sample in samples for step in sample.steps_s]
            if len(steps) >= 2 and sum(steps) > 0:
                decode_tps = inverted(mean_of(steps), batch, self._on)
                prefill_tps = self._mean(
                    [s.prompt_tokens / s.seconds for s in prefills[batch] if s.seconds > 0]
                )
                rates.append(BatchRates(batch=batch, decode_tps=decode_tps, prefill_tps=prefill_tps))
        return tuple(rates)

    def _pairs(self) -> tuple[PairProfile, ...]:
        pairs = []
        for source, destination in sorted({(s.source, s.destination) for s in self._found.moves}):
            what = f"transfer, {source} → {destination}"
            ends = {"source": source, "destination": destination}
            idle = self._line(what, self._transfers(is_loaded=False, **ends))
            if idle is None:
                continue
            points = self._transfers(is_loaded=True, **ends)
            loaded = self._line(f"{what}, under load", points, is_optional=True)
            pairs.append(
                PairProfile(
                    **ends,
                    transfer_overhead_s=idle.overhead_s,
                    bandwidth_bytes_per_s=idle.rate,
                    bandwidth_loaded_bytes_per_s=None if loaded is None else loaded.rate,
                )
            )
        return tuple(pairs)


def _hull(constants: Iterable[Constant | None]) -> Constant | None:
    """One constant for several models: the mean of theirs, with an interval that holds all of their own."""
    known = [(c.value, c.measured) for c in constants if c is not None and c.measured is not None]
    if len(known) <= 1:
        return Constant(*known[0]) if known else None
    highs = [m.high for _, m in known if m.high is not None]
    low, n = min(m.low for _, m in known), sum(m.n for _, m in known)
    value = sum(value for value, _ in known) / len(known)
    return Constant(value, Measurement(known[0][1].on, n, low, max(highs, default=None)))
