"""What the router counts, cheaply enough for every frame, and how Prometheus reads it."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ITL_BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
)
STARTUP_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
PAUSE_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROUND_BOUNDS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)


class Durations:
    """A histogram of seconds in plain lists: `observe` costs a bisection and two additions, no lock."""

    __slots__ = ("_bounds_s", "_counts", "_sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = list(bounds_s)
        self._counts = [0] * (len(self._bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """The histogram as Prometheus wants it."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip([*map(str, map(float, self._bounds_s)), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=self._sum_s)


class RouterMetrics(Collector):
    """The router's metrics in `registry`; used from the event loop's thread only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.ttft = Durations(TTFT_BOUNDS_S)
        self.itl = Durations(ITL_BOUNDS_S)
        self.startup = Durations(STARTUP_BOUNDS_S)
        self._requests = Counter(
            "godwit_requests", "HTTP requests by path and status.", ["path", "status"], registry=registry
        )
        self._stream_errors = Counter(
            "godwit_stream_errors", "Streams that ended with an error object.", registry=registry
        )
        self._slow_readers = Counter(
            "godwit_slow_readers_cut", "Clients cut since they did not read their stream.", registry=registry
        )
        self._migrations = Counter(
            "godwit_migrations",
            "Planned moves by method and outcome.",
            ["method", "outcome"],
            registry=registry,
        )
        self._failovers = Counter(
            "godwit_failovers", "Requests continued elsewhere since their server was gone.", registry=registry
        )
        self._approximate = Counter(
            "godwit_approximate_continuations",
            "Moves and failovers to engines that could not continue exactly, by what was not kept.",
            ["broken"],
            registry=registry,
        )
        self._pause = Histogram(
            "godwit_migration_pause_seconds",
            "Gap between the last token of the source and the first of the destination.",
            buckets=PAUSE_BOUNDS_S,
            registry=registry,
        )
        self._rounds = Histogram(
            "godwit_migration_rounds", "Resume rounds of a move.", buckets=ROUND_BOUNDS, registry=registry
        )
        self._kv_bytes = Counter("godwit_migration_kv_bytes", "KV that moves shipped.", registry=registry)
        self._prediction_error = Histogram(
            "godwit_migration_prediction_error_seconds",
            "How far predicted seconds of a move were from measured ones, by what was done and by phase.",
            ["method", "phase"],
            buckets=PAUSE_BOUNDS_S,
            registry=registry,
        )
        self._prediction_bias = Gauge(
            "godwit_migration_prediction_bias_seconds",
            "Median of measured - predicted seconds of the latest moves by phase; NaN before the first.",
            ["phase"],
            registry=registry,
        )
        self._make_startup_metrics(registry)
        self._num_stale_tokens: Callable[[], float] = lambda: 0.0
        self._queued = Gauge("godwit_requests_queued", "Requests without a server yet.", registry=registry)
        self._running = Gauge("godwit_requests_running", "Requests on a server.", registry=registry)
        registry.register(self)

    def _make_startup_metrics(self, registry: CollectorRegistry) -> None:
        self._loads = Counter("godwit_loads", "Loads by tier.", ["tier"], registry=registry)
        self._load_bytes = Counter(
            "godwit_load_bytes",
            "Checkpoint bytes that loads brought to a device.",
            ["tier"],
            registry=registry,
        )
        self._load_seconds = Histogram(
            "godwit_load_seconds",
            "Seconds of a load from its turn on, by the tier that it came from.",
            ["tier"],
            buckets=STARTUP_BOUNDS_S,
            registry=registry,
        )
        self._startup_error = Histogram(
            "godwit_startup_prediction_error_seconds",
            "How far predicted seconds of a load or of a move's resume were from measured ones.",
            ["what"],
            buckets=PAUSE_BOUNDS_S,
            registry=registry,
        )
        self._preemptions = Counter(
            "godwit_preemptions", "Requests taken off their server for another model.", registry=registry
        )
        self._evictions = Counter(
            "godwit_evictions", "Idle instances that the scheduler unloaded.", registry=registry
        )
        self._early_moves = Counter(
            "godwit_early_moves", "Moves off servers that were likely to leave.", registry=registry
        )

    def watch(
        self,
        *,
        num_queued: Callable[[], float],
        num_running: Callable[[], float],
        num_stale_tokens: Callable[[], float],
        bias_s: Mapping[str, Callable[[], float]] | None = None,
    ) -> None:
        """Read these at every scrape; `bias_s` by phase of a move."""
        self._num_stale_tokens = num_stale_tokens
        self._queued.set_function(num_queued)
        self._running.set_function(num_running)
        for phase, read in (bias_s or {}).items():
            self._prediction_bias.labels(phase).set_function(read)

    def request(self, path: str, status: int) -> None:
        """An HTTP request was answered; 499 means that its client left first."""
        self._requests.labels(path, str(status)).inc()

    def stream_error(self) -> None:
        """A stream ended with an error object after its first byte."""
        self._stream_errors.inc()

    def slow_reader(self) -> None:
        """A client was cut since it did not read its stream."""
        self._slow_readers.inc()

    def migration(self, method: str, outcome: str) -> None:
        """A planned move ended."""
        self._migrations.labels(method, outcome).inc()

    def failover(self) -> None:
        """A request was continued elsewhere since its server was gone."""
        self._failovers.inc()

    def approximate(self, broken: Iterable[str]) -> None:
        """A request went on only approximately; one that broke two promises is counted under both."""
        for promise in broken:
            self._approximate.labels(promise).inc()

    def pause(self, seconds: float) -> None:
        """A request was handed over with this pause."""
        self._pause.observe(seconds)

    def rounds(self, count: int) -> None:
        """A move took this many rounds."""
        self._rounds.observe(count)

    def kv_bytes(self, count: int) -> None:
        """A move shipped so many bytes of KV."""
        self._kv_bytes.inc(count)

    def prediction_error(self, method: str, phase: str, seconds: float) -> None:
        """A phase of a move took so much more or less time than predicted."""
        self._prediction_error.labels(method, phase).observe(seconds)

    def load(self, tier: str, num_bytes: int, seconds: float) -> None:
        """A checkpoint was loaded."""
        self._loads.labels(tier).inc()
        self._load_bytes.labels(tier).inc(num_bytes)
        self._load_seconds.labels(tier).observe(seconds)

    def startup_error(self, what: str, seconds: float) -> None:
        """A load or a resume took so much more or less time than predicted."""
        self._startup_error.labels(what).observe(seconds)

    def preemption(self) -> None:
        """A request had to make room."""
        self._preemptions.inc()

    def eviction(self) -> None:
        """An idle instance was unloaded."""
        self._evictions.inc()

    def early_move(self) -> None:
        """A request was moved since its server was likely to leave."""
        self._early_moves.inc()

    def collect(self) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        """What is counted elsewhere or in plain lists."""
        yield CounterMetricFamily(
            "godwit_stale_tokens",
            "Tokens that were refused since their server no longer owned the request.",
            value=self._num_stale_tokens(),
        )
        yield self.ttft.family("godwit_ttft_seconds", "Arrival of a request to its first token.")
        yield self.itl.family("godwit_itl_seconds", "Gap between two deliveries of tokens of one request.")
        yield self.startup.family(
            "godwit_startup_seconds", "Arrival of a request to its first start on a server, loads included."
        )
