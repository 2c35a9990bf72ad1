"""All constants of a calibration in one flat list, for a table and for programs. Pure."""

from collections.abc import Iterator

from msgspec import Struct

from godwit.calibrate.build import Built
from godwit.costs.constants import Constant
from godwit.profile import ModelProfile, Profile


class Figure(Struct, frozen=True):
    """One constant: its unit ends its name; `n` None means that it is assumed, `high` None no upper end.

    `model`, `worker`, `source`, `destination` and `batch` say what it is about; None: all of them.
    """

    name: str
    value: float
    n: int | None = None
    low: float | None = None
    high: float | None = None
    residual_std: float | None = None
    model: str | None = None
    worker: str | None = None
    source: str | None = None
    destination: str | None = None
    batch: int | None = None

    @property
    def about(self) -> str:
        """What it is about, in words."""
        pair = f"{self.source} → {self.destination}" if self.source is not None else self.worker
        batch = None if self.batch is None else f"{self.batch} at once"
        return ", ".join(part for part in (self.model, pair, batch) if part is not None) or "all"


class Report(Struct, frozen=True):
    """What `godwit calibrate --json` prints."""

    hardware: str
    date: str
    seconds: float
    num_moves: int
    constants: tuple[Figure, ...]
    kv_points: dict[str, tuple[tuple[float, float], ...]]
    warnings: tuple[str, ...]
    profile: Profile


def make_report(built: Built, num_moves: int, seconds: float) -> Report:
    """Everything that came out."""
    profile = built.profile
    return Report(
        profile.hardware,
        profile.date,
        round(seconds, 1),
        num_moves,
        tuple(figures(profile)),
        built.kv_points,
        built.warnings,
        profile,
    )


def figures(profile: Profile) -> Iterator[Figure]:
    """The whole cluster first, then each model, each worker and each pair."""
    for name in ("transfer_overhead_s", "recompute_overhead_s", "bandwidth_bytes_per_s"):
        yield from _figure(profile, name)
    for model, one in profile.models.items():
        yield from _of_model(one, model, None)
    for worker, models in profile.workers.items():
        for model, one in models.items():
            yield from _of_model(one, model, worker)
    for pair in profile.pairs:
        for name in ("transfer_overhead_s", "bandwidth_bytes_per_s", "bandwidth_loaded_bytes_per_s"):
            yield from _figure(pair, name, source=pair.source, destination=pair.destination)


def _of_model(one: ModelProfile, model: str, worker: str | None) -> Iterator[Figure]:
    names = [
        "prefill_tps",
        "recompute_overhead_s",
        "prefill_loaded_tps",
        "source_slowdown",
        "destination_slowdown",
    ]
    # What a token takes is the model's, not the worker's.
    for name in names if worker is not None else [*names, "kv_bytes_per_token"]:
        yield from _figure(one, name, model=model, worker=worker)
    for rates in one.batches:
        for name in ("decode_tps", "prefill_tps"):
            yield from _figure(rates, name, model=model, worker=worker, batch=rates.batch)


def _figure(
    holder: Struct,
    name: str,
    *,
    model: str | None = None,
    worker: str | None = None,
    source: str | None = None,
    destination: str | None = None,
    batch: int | None = None,
) -> Iterator[Figure]:
    """The constant of that name, if there is one."""
    constant: Constant | None = getattr(holder, name)
    if constant is None:
        return
    m = constant.measured
    yield Figure(
        name,
        constant.value,
        n=None if m is None else m.n,
        low=None if m is None else m.low,
        high=None if m is None else m.high,
        residual_std=None if m is None else m.residual_std,
        model=model,
        worker=worker,
        source=source,
        destination=destination,
        batch=batch,
    )
