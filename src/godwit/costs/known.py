"""What is known of a cluster before its first move: constants of its models, its workers and their pairs."""

from collections.abc import Mapping

from msgspec import Struct

from godwit.costs.constants import Constant
from godwit.costs.crossover import LINKS
from godwit.costs.fit import Line
from godwit.costs.kv import KvSize

ASSUMED_TRANSFER_OVERHEAD_S = Constant(0.5)
ASSUMED_RECOMPUTE_OVERHEAD_S = Constant(0.2)
ASSUMED_PREFILL_TPS = Constant(250.0)
ASSUMED_BANDWIDTH_BYTES_PER_S = Constant(LINKS["lan"])
ASSUMED_KV_BYTES_PER_TOKEN = Constant(128_000.0)


def _check_rates(*rates: Constant | None) -> None:
    if any(rate is not None and rate.value == 0 for rate in rates):
        raise ValueError("a rate is above 0")


class PairConstants(Struct, frozen=True):
    """The way from one worker to another: a transfer's overhead, the effective bandwidth (bytes/s).

    `bandwidth_loaded_bytes_per_s` is that while both ends serve other requests, None where nobody measured
    it. ValueError where a bandwidth is 0.
    """

    transfer_overhead_s: Constant = ASSUMED_TRANSFER_OVERHEAD_S
    bandwidth_bytes_per_s: Constant = ASSUMED_BANDWIDTH_BYTES_PER_S
    bandwidth_loaded_bytes_per_s: Constant | None = None

    def __post_init__(self) -> None:
        _check_rates(self.bandwidth_bytes_per_s, self.bandwidth_loaded_bytes_per_s)

    @property
    def line(self) -> Line:
        """Seconds over bytes."""
        return Line(self.transfer_overhead_s.value, 1 / self.bandwidth_bytes_per_s.value)

    @property
    def loaded_share(self) -> float:
        """What is left of the bandwidth while both ends serve others; 1 where nobody measured it."""
        return _share(self.bandwidth_bytes_per_s, self.bandwidth_loaded_bytes_per_s)


class ServerConstants(Struct, frozen=True):
    """How one model is served: a recompute's overhead, the prefill rate (tokens/s), the size of its KV.

    `prefill_loaded_tps` is the rate while the worker serves other requests, `token_s` the seconds for each
    output token; None where nobody measured them. `kv_points`, (tokens, bytes) as `KvSize.measured` takes
    them, replace `kv_bytes_per_token` where there are any. ValueError where a rate is 0, or the points make
    no size.
    """

    prefill_tps: Constant = ASSUMED_PREFILL_TPS
    recompute_overhead_s: Constant = ASSUMED_RECOMPUTE_OVERHEAD_S
    prefill_loaded_tps: Constant | None = None
    kv_bytes_per_token: Constant = ASSUMED_KV_BYTES_PER_TOKEN
    kv_points: tuple[tuple[float, float], ...] = ()
    token_s: Constant | None = None

    def __post_init__(self) -> None:
        _check_rates(self.prefill_tps, self.prefill_loaded_tps, self.token_s)
        _ = self.kv

    @property
    def kv(self) -> KvSize:
        """Bytes by range."""
        return KvSize.known(self.kv_bytes_per_token.value, self.kv_points)

    @property
    def is_kv_measured(self) -> bool:
        """Whether somebody measured its KV, so that moves need not teach it."""
        return bool(self.kv_points) or self.kv_bytes_per_token.measured is not None

    @property
    def line(self) -> Line:
        """Seconds over tokens."""
        return Line(self.recompute_overhead_s.value, 1 / self.prefill_tps.value)

    @property
    def loaded_share(self) -> float:
        """What is left of the prefill rate while the worker serves others; 1 where nobody measured it."""
        return _share(self.prefill_tps, self.prefill_loaded_tps)


class Constants(Struct, frozen=True):
    """All that is known: `pair` and `models` of the whole cluster, and of single workers where it differs.

    `server` is for a model that is in none of them. Keys of `workers` are (worker, model), those of `pairs`
    (source, destination).
    """

    pair: PairConstants = PairConstants()
    server: ServerConstants = ServerConstants()
    models: Mapping[str, ServerConstants] = {}
    workers: Mapping[tuple[str, str], ServerConstants] = {}
    pairs: Mapping[tuple[str, str], PairConstants] = {}

    def of_pair(self, source: str, destination: str) -> PairConstants:
        """The pair's own, else the cluster's."""
        return self.pairs.get((source, destination), self.pair)

    def of_model(self, model: str) -> ServerConstants:
        """The model's anywhere in the cluster, else those of any model."""
        return self.models.get(model, self.server)

    def of_worker(self, worker: str, model: str) -> ServerConstants:
        """The worker's own, else the model's."""
        return self.workers.get((worker, model)) or self.of_model(model)


def _share(free: Constant, loaded: Constant | None) -> float:
    return 1.0 if loaded is None else loaded.value / free.value
